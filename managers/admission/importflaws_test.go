package admission_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/importer"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// entries makes a kubelet_internal_checkpoint with devices of one container, and one entry that is whole.
func entries(t *testing.T, registered string, flawed kubelet.DeviceEntry) []byte {
	t.Helper()
	s := kubelet.DeviceState{
		Registered: map[string][]string{gpu: {"g0"}},
		Entries: []kubelet.DeviceEntry{{Pod: "whole", Container: "main", Resource: gpu, IDs: map[int64][]string{1: {"g2"}},
			Response: []byte{}}},
	}
	if registered != "" {
		s.Registered[registered] = nil
	}
	if flawed.Resource != "" {
		flawed.Pod, flawed.Container = "flawed", "main"
		s.Entries = append(s.Entries, flawed)
	}
	data, err := s.Marshal()
	must(t, err)
	return data
}

// memoryEntries makes a memory_manager_state with blocks of one container, and one entry that is whole.
func memoryEntries(t *testing.T, blocks ...kubelet.MemoryBlock) []byte {
	t.Helper()
	s := kubelet.MemoryState{
		Policy: "Static",
		Containers: map[string]map[string][]kubelet.MemoryBlock{
			"whole":  {"main": {{Nodes: numa.Of(0), Resource: "memory", Bytes: 1 << 20}}},
			"flawed": {"main": blocks},
		},
	}
	data, err := s.Marshal(1)
	must(t, err)
	return data
}

// TestImportOfWhatNoKubeletWouldStartWith: such a file is refused, with the file, the entry and why. With force the
// whole entries are taken, and the others are listed. Pods are admitted afterwards as before.
func TestImportOfWhatNoKubeletWouldStartWith(t *testing.T) {
	t.Parallel()
	ids := func(ids ...string) map[int64][]string { return map[int64][]string{1: ids} }
	for name, row := range map[string]struct {
		kind  kubelet.Kind
		data  []byte
		words []string
	}{
		"CPUs that the machine lacks": {kubelet.CPU, file("0,3-511", "whole/main=1-2", "flawed/main=16-17"),
			[]string{"flawed/main", "does not have CPUs 16-17"}},
		"more CPUs than requested": {kubelet.CPU, file("0,12-15", "whole/main=1-2", "flawed/main=3-11"),
			[]string{"flawed/main", "9 exclusive CPUs", "requests 2"}},
		"fewer CPUs than requested": {kubelet.CPU, file("0,4-15", "whole/main=1-2", "flawed/main=3"),
			[]string{"flawed/main", "1 exclusive CPUs", "requests 2"}},
		"more memory than there is": {kubelet.Memory, memoryEntries(t,
			kubelet.MemoryBlock{Nodes: numa.Of(0), Resource: "memory", Bytes: 1 << 63}),
			[]string{"flawed/main", "9223372036854775808 bytes", "requests 1048576"}},
		"more memory than 64 bits have": {kubelet.Memory, memoryEntries(t,
			kubelet.MemoryBlock{Nodes: numa.Of(0), Resource: "memory", Bytes: 1 << 63},
			kubelet.MemoryBlock{Nodes: numa.Of(1), Resource: "memory", Bytes: 1 << 63}), []string{"flawed/main", "more than 2^64 bytes"}},
		"NUMA nodes that the machine lacks": {kubelet.Memory, memoryEntries(t,
			kubelet.MemoryBlock{Nodes: numa.Of(1, 7), Resource: "memory", Bytes: 1 << 20}),
			[]string{"flawed/main", "NUMA nodes 0-1, and not 1,7"}},
		"huge pages without a request": {kubelet.Memory, memoryEntries(t,
			kubelet.MemoryBlock{Nodes: numa.Of(0), Resource: "hugepages-2Mi", Bytes: 2 << 20}),
			[]string{"flawed/main", "2097152 bytes", "requests 0"}},
		"a plugin of CPUs": {kubelet.Device, entries(t, "cpu", kubelet.DeviceEntry{}),
			[]string{"RegisteredDevices cpu", "extended resource"}},
		"devices of CPUs": {kubelet.Device, entries(t, "", kubelet.DeviceEntry{Resource: "cpu", IDs: ids("c0", "c1")}),
			[]string{"cpu of flawed/main", "extended resource"}},
		"a name with escapes": {kubelet.Device, entries(t, "\x1b[31m", kubelet.DeviceEntry{}),
			[]string{`"\x1b[31m"`, "extended resource"}},
		"a name that turns the text": {kubelet.Device, entries(t, "a\u202eb", kubelet.DeviceEntry{}),
			[]string{`"a\u202eb"`, "extended resource"}},
		"a device with escapes": {kubelet.Device, entries(t, "", kubelet.DeviceEntry{Resource: gpu, IDs: ids("\x1b[31m")}),
			[]string{gpu + " of flawed/main", `"\x1b[31m"`}},
		"more devices than requested": {kubelet.Device, entries(t, "", kubelet.DeviceEntry{Resource: gpu, IDs: ids("g0", "g3")}),
			[]string{gpu + " of flawed/main", "2 devices", "requests 1"}},
		"an answer that is none": {kubelet.Device, entries(t, "", kubelet.DeviceEntry{Resource: gpu, IDs: ids("g0"),
			Response: []byte(strings.Repeat("\xff", 8))}),
			[]string{gpu + " of flawed/main", "AllocResp"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newFixture(t, topology.BestEffort)
			before := h.ledger.View()
			req := importer.Request{
				Kind: row.kind, Data: row.data, Pods: []workload.Pod{guaranteed("whole", 2, 1), guaranteed("flawed", 2, 1)},
				Settings: kubelet.Settings{Policy: "static"},
			}
			for _, req.DryRun = range []bool{true, false} {
				_, err := h.importer().Import(context.Background(), req)
				if class(t, err) != errdefs.Precondition || h.ledger.View() != before {
					t.Fatalf("class %v: %v", errdefs.ClassOf(err), err)
				}
				for _, w := range append(row.words, "import ", "--force") {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v: want %q in it", err, w)
					}
				}
			}
			req.Force = true
			done, err := h.importer().Import(context.Background(), req)
			must(t, err)
			if !slices.Contains(outcomes(done), "whole new") || len(done.Facts.Skipped) != 1 {
				t.Errorf("%q, skipped %q", outcomes(done), done.Facts.Skipped)
			}
			for _, w := range row.words {
				if !strings.Contains(done.Facts.Skipped[0], w) {
					t.Errorf("skipped %q: want %q in it", done.Facts.Skipped, w)
				}
			}
			if v := h.admit(t, guaranteed("later", 1, 0)); v.Outcome != admission.Admitted {
				t.Errorf("a pod without devices afterwards: %+v", v)
			}
		})
	}
}
