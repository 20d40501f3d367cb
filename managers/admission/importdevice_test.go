package admission_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// checkpoint is a kubelet_internal_checkpoint with devices of node 1 for
// containers "uid/main".
func checkpoint(t *testing.T, allocated map[string][]string) []byte {
	t.Helper()
	s := kubelet.DeviceState{Registered: map[string][]string{gpu: {"g0"}, "example.com/nic": nil}}
	for uid, ids := range allocated {
		s.Entries = append(s.Entries, kubelet.DeviceEntry{
			Pod: uid, Container: "main", Resource: gpu, IDs: map[int64][]string{1: ids}, Response: []byte{},
		})
	}
	data, err := s.Marshal()
	must(t, err)
	return data
}

// TestImportDevices takes a pod's CPUs over and then its devices, whose plugin is
// not called; the devices are not given out any more.
func TestImportDevices(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.Restricted)
	pods := []workload.Pod{guaranteed("a", 2, 2)}
	_, err := h.take(importer.Request{Data: file("0,3-15", "a/main=1-2"), Pods: pods})
	must(t, err)
	req := importer.Request{Kind: kubelet.Device, Data: checkpoint(t, map[string][]string{"a": {"g2", "g3"}})}
	done, err := h.importer().Import(context.Background(), req)
	must(t, err)
	if got := outcomes(done); !slices.Equal(got, []string{"a extended"}) || len(done.Findings) > 0 || len(done.Facts.Notes) > 0 {
		t.Errorf("%q, findings %v, notes %q", got, done.Findings, done.Facts.Notes)
	}
	claim, _ := h.ledger.View().Claim(ledger.Owner{Pod: "a", Container: "main"}, gpu)
	if claim.Devices == nil || !slices.Equal(claim.Devices.IDs(), []string{"g2", "g3"}) || claim.Devices.Devices[0].Nodes != 2 {
		t.Errorf("claim %+v", claim)
	}
	var seen []string
	for r := range h.ledger.View().SeenResources() {
		seen = append(seen, r.Name)
	}
	if !slices.Equal(seen, []string{gpu, "example.com/nic"}) || len(h.plugins.calls) > 0 {
		t.Errorf("resources %q; plugins were asked %q", seen, h.plugins.calls)
	}
	if v := h.admit(t, guaranteed("b", 1, 3)); v.Outcome != admission.Rejected {
		t.Errorf("three of the two that are left: %v", v.Outcome)
	}
	// The same file again, and one that differs.
	done, err = h.importer().Import(context.Background(), req)
	if err != nil || !slices.Equal(outcomes(done), []string{"a known"}) {
		t.Errorf("again: %q, %v", outcomes(done), err)
	}
	req.Data = checkpoint(t, map[string][]string{"a": {"g0", "g1"}})
	_, err = h.importer().Import(context.Background(), req)
	if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(),
		"a/main holds example.com/gpu g2, g3 in the ledger, and example.com/gpu g0, g1 in the file") {
		t.Errorf("other devices: %v", err)
	}
	req.Data, req.Pods = checkpoint(t, map[string][]string{"c": {"g3"}}), []workload.Pod{guaranteed("c", 0, 1)}
	if _, err = h.importer().Import(context.Background(), req); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("a device of another pod: %v", err)
	}
}
