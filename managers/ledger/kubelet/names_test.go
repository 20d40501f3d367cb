package kubelet_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// TestNamesOfInitContainersDoNotMatter: what an app takes over from its init containers does not depend on the containers' names.
func TestNamesOfInitContainersDoNotMatter(t *testing.T) {
	t.Parallel()
	_, l, settings := memoryFixture(t, workload.Features{})
	for _, names := range [][3]string{{"a", "b", "c"}, {"z", "b", "c"}, {"z", "y", "x"}} {
		pods := map[string]*workload.Pod{"one": {UID: "one", Containers: []workload.Container{
			asks(names[0], workload.Init, 6*gi), asks(names[1], workload.Init, gi), asks(names[2], workload.App, 9*gi)}}}
		block := func(bytes uint64) []kubelet.MemoryBlock {
			return []kubelet.MemoryBlock{{Nodes: numa.Of(1, 3), Resource: "memory", Bytes: bytes}}
		}
		state := kubelet.MemoryState{
			Policy: memory.PolicyStatic,
			Nodes: map[int]kubelet.MemoryNode{
				1: {Tables: map[string]kubelet.MemoryTable{"memory": {Reserved: 5 * gi}}},
				3: {Tables: map[string]kubelet.MemoryTable{"memory": {Reserved: 4 * gi}}},
			},
			Containers: map[string]map[string][]kubelet.MemoryBlock{
				"one": {names[0]: block(0), names[1]: block(0), names[2]: block(9 * gi)}},
		}
		data, err := state.Marshal(2)
		if err != nil {
			t.Fatal(err)
		}
		facts, err := kubelet.Read(kubelet.Memory, data, kubelet.Input{View: l.View(), Pods: pods, Settings: settings, PodLevel: true})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range names {
			for _, c := range facts.Claims {
				if c.Owner.Container == name {
					got = append(got, fmt.Sprint(c.Memory[0].Parts))
				}
			}
		}
		want := fmt.Sprintf("[{1 %d} {3 %d}] [] [{1 %d} {3 %d}]", 5*gi, gi, 5*gi, 4*gi)
		if g := strings.Join(got, " "); g != want {
			t.Errorf("%v: %s, want %s; notes %q", names, g, want, facts.Notes)
		}
	}
}
