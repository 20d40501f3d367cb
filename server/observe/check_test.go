package observe_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/kubeletnode/nodetest"
	"github.com/berthd/berth/server/observe"
)

// wrong are the findings on recorded nodes, by check and object. What the recordings say about them was compared by hand.
var wrong = map[string][]string{
	// The scenario's configuration k-nopods.json has enforceNodeAllocatable [none].
	"v2-cgroupfs-reserved-cgroups/full-enforce-none": {"pods-not-enforced enforceNodeAllocatable"},
	"v2-systemd-reserved-cgroups/full-enforce-none":  {"pods-not-enforced enforceNodeAllocatable"},
	// k-noqos.json has enforceNodeAllocatable [], which the kubelet leaves out of what it serves. A kubelet that reads this takes [pods].
	"v2-cgroupfs-reserved-cgroups/full-no-cgroups-per-qos": {"configuration enforceNodeAllocatable"},
	"v2-systemd-reserved-cgroups/full-no-cgroups-per-qos":  {"configuration enforceNodeAllocatable"},
	// results.json: p13-gtopo was removed, and is "still_there" in kubelet_internal_checkpoint.
	"v2-systemd-besteffort/full-A": {"devices-left-behind pod " + pod(13)},
	"v2-systemd-none/full-A":       {"devices-left-behind pod " + pod(13)},
	// p07-gside was removed while the kubelet was stopped; p09-gdev was rejected (TopologyAffinityError) after the last start.
	"v2-systemd-restart/full-after": {"memory-left-behind pod " + pod(7), "devices-left-behind pod " + pod(9)},
	// p29-gdevinit was rejected (UnexpectedAdmissionError) after the last start.
	"v2-systemd-single-podscope/full-C": {"memory-left-behind pod " + pod(29), "devices-left-behind pod " + pod(29)},
}

func pod(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

// TestCheckRecordings: nothing else is wrong on recorded nodes.
func TestCheckRecordings(t *testing.T) {
	t.Parallel()
	seen, roots := 0, map[string]string{}
	for _, r := range nodetest.Recordings(t) {
		root, ok := roots[r.Shape]
		if !ok {
			root = r.Write(t)
			roots[r.Shape] = root
		}
		r.Rewrite(t, root)
		sameBoot(t, root)
		checked, err := observe.Check(t.Context(), observe.Options{Root: root, Pods: podsOf(t, filepath.Join(root, nodetest.PodsFile))})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if len(checked.Missing) > 0 {
			t.Errorf("%s: not read: %q", r.Name, checked.Missing)
		}
		var got []string
		for _, f := range checked.Findings {
			got = append(got, f.ID+" "+f.Object)
		}
		if seen++; !slices.Equal(got, wrong[r.Name]) {
			t.Errorf("%s: got %q, want %q: %+v", r.Name, got, wrong[r.Name], checked.Findings)
		}
	}
	t.Logf("%d nodes", seen)
}

// sameBoot gives the machine the memory that the memory checkpoint has: the machine was recorded in another boot, in which the kernel put
// some memory and huge pages on other nodes.
func sameBoot(t *testing.T, root string) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "var/lib/kubelet/memory_manager_state"))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	state, err := kubelet.ParseMemory(data)
	if err != nil {
		t.Fatal(err)
	}
	total := regexp.MustCompile(`(MemTotal:\s*)\d+ kB`)
	for id, node := range state.Nodes {
		dir := filepath.Join(root, "sys/devices/system/node", "node"+strconv.Itoa(id))
		for resource, table := range node.Tables {
			file, change := filepath.Join(dir, "meminfo"), func(text []byte) []byte {
				return total.ReplaceAll(text, fmt.Appendf(nil, "${1}%d kB", table.Total>>10))
			}
			if size, err := workload.HugePageSize(workload.Resource(resource)); err == nil {
				file = filepath.Join(dir, "hugepages", fmt.Sprintf("hugepages-%dkB", size>>10), "nr_hugepages")
				change = func([]byte) []byte { return fmt.Appendf(nil, "%d\n", table.Total/uint64(size)) }
			}
			text, err := os.ReadFile(file)
			if err == nil {
				err = os.WriteFile(file, change(text), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}
