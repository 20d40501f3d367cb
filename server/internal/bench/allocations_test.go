package bench

import (
	"errors"
	"fmt"
	"testing"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/hack/allocs"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/server/servertest"
)

// TestAllocations limits what decisions, calls and commits allocate. The calls are those of a berthd without
// sockets and disk; their messages are copied twice. The commits are those of such calls, on disk and with their
// history.
func TestAllocations(t *testing.T) {
	for _, c := range admitCases {
		limit, ok := map[string]int{
			"decision, CPU and memory, half":            126,
			"decision, CPU, memory and 2 devices, half": 182,
		}[c.operation]
		if !ok {
			continue
		}
		d := c.on(t)
		allocs.AtMost(t, c.operation, limit, func() error { _, err := d.decide(); return err })
	}
	r := runLocal(t)
	allocs.AtMost(t, "dry run", 191, func() error { return r.admit(t.Context(), "a", true) })
	allocs.AtMost(t, "Admit and RemovePod", 323, func() error {
		return errors.Join(r.admit(t.Context(), "a", false), r.remove(t.Context(), "a"))
	})
	for i := range 100 {
		if err := r.admitPod(t.Context(), oldPod(i), false); err != nil {
			t.Fatal(err)
		}
	}
	allocs.AtMost(t, "List of 100 pods", 2217, func() error {
		got, err := r.Allocation().List(t.Context(), &allocationv1.ListRequest{})
		if err == nil && len(got.GetPods()) != 100 {
			return fmt.Errorf("%d pods", len(got.GetPods()))
		}
		return err
	})
	disk := newTwin(t, runBerthd(t), wirePod("a"))
	allocs.AtMost(t, "commits of Admit and RemovePod", 386, func() error {
		_, err := disk.put(t.Context())
		return errors.Join(err, disk.remove(t.Context()))
	})
}

// runLocal starts a berthd without sockets and disk.
func runLocal(t *testing.T) *running {
	t.Helper()
	c := config.Default()
	c.Machine, c.CPU.Policy, c.Topology.Policy, c.Reserved.CPUs = "2s4n32c2t", "static", topology.Restricted, cpuset.Of(0)
	c.Memory.Policy, c.Node.MaxPods = memory.PolicyNone, 1000
	local, err := servertest.NewLocal(c)
	if err != nil {
		t.Fatal(err)
	}
	d, err := local.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	client := berth.Over(d, berth.Options{})
	return &running{Client: client, admission: admissionv1.NewAdmissionServiceClient(d)}
}
