package main

import (
	"reflect"
	"testing"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/workload"
)

// TestWrappedAmounts shows a pod whose containers share huge pages that it has not
// got: in the recording they have less than nothing of them.
func TestWrappedAmounts(t *testing.T) {
	t.Parallel()
	block := func(kind string, size uint64) memoryBlock {
		return memoryBlock{NUMA: vector.MaskOf(0), Type: kind, Size: size}
	}
	result := memoryResult{OK: true, Blocks: []memoryBlock{block("memory", 4)}}
	state := func(shares ...memoryBlock) memoryState {
		return memoryState{
			Assignments:    map[string]map[string][]memoryBlock{"p": {"a": {block("memory", 3)}, "b": shares}},
			PodAssignments: map[string][]memoryBlock{"p": result.Blocks},
		}
	}
	in := memoryAllocateIn{operation: operation[memoryState]{Op: "allocate_pod", Pod: vector.Pod{Pod: &workload.Pod{UID: "p"}}}}
	want := memoryAllocated{Result: result, After: state(block("hugepages-2Mi", 1<<64-1), block("memory", 1))}
	if memoryAllocateUnsound(nil, in, want) == "" {
		t.Error("less than nothing went unnoticed")
	}
	right := memoryAllocated{Result: result, After: state(block("memory", 1))}
	if entry, err := memoryAllocateDiffers(nil, in, want, right); entry != wrapsAround || err != nil {
		t.Errorf("%q, %v; want %s", entry, err, wrapsAround)
	}
	wrong := memoryAllocated{Result: result, After: state(block("memory", 2))}
	if _, err := memoryAllocateDiffers(nil, in, want, wrong); err == nil {
		t.Error("another amount of memory was taken for the same difference")
	}
	// A container has pages of which its pod has none: berth refuses the pod.
	want.After = state(block("hugepages-2Mi", 2), block("memory", 1))
	if memoryAllocateUnsound(nil, in, want) == "" {
		t.Error("pages that the pod does not have went unnoticed")
	}
	refused := memoryAllocated{Result: memoryResult{Error: &vector.Error{}}}
	if entry, err := memoryAllocateDiffers(nil, in, want, refused); entry != wrapsAround || err != nil {
		t.Errorf("%q, %v; want %s", entry, err, wrapsAround)
	}
	if _, err := memoryAllocateDiffers(nil, in, want, right); err == nil {
		t.Error("pages that the pod does not have may be given out")
	}
	want.After = right.After
	if why := memoryAllocateUnsound(nil, in, want); why != "" {
		t.Errorf("a right recording is taken for wrong: %s", why)
	}
}

// TestMemoryByDefinition compares the definition, which judges berth where the reference is wrong,
// with the recordings that have no mark.
func TestMemoryByDefinition(t *testing.T) {
	t.Parallel()
	seen := 0
	eachCase(t, "memory_hints", func(_ *Env, in memoryHintsIn, want memoryHintsWant) {
		if len(want.Quirks) > 0 || want.Panic != "" {
			return
		}
		for name, recorded := range want.ContainerHints {
			if len(in.State.Assignments[in.Pod.UID][name]) > 0 {
				continue
			}
			seen++
			if got := in.oracle(in.State, in.Pod.Pod, name).hints(); !reflect.DeepEqual(got, recorded.Canonical()) {
				t.Errorf("container %s of %s: got %s, want %s", name, render(in), render(got), render(recorded))
			}
		}
	})
	if seen < 1000 {
		t.Errorf("%d containers", seen)
	}
}
