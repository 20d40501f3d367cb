package main

import (
	"reflect"
	"slices"
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
	eachCase(t, "memory_hints", func(_ *Env, in memoryHintsIn, want recordedHints) {
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

// TestMemoryOracleWants checks whose requests count.
func TestMemoryOracleWants(t *testing.T) {
	t.Parallel()
	full := workload.Quantities{"cpu": 1000, "memory": 8, "hugepages-2Mi": 0, "example.com/gpu": 1}
	part := workload.Quantities{"memory": 4}
	pod := workload.Pod{UID: "p", Containers: []workload.Container{
		{Name: "a", Requests: full, Limits: full}, {Name: "b", Requests: part, Limits: part},
	}}
	whole := pod
	whole.Resources = &workload.Resources{Requests: full, Limits: full}
	own := pod
	own.Containers = own.Containers[:1]
	on := vector.Gates{vector.PodLevelResourceManagers: true}
	for _, tt := range []struct {
		name, container string
		gates           vector.Gates
		pod             workload.Pod
		want            map[string]uint64
	}{
		{"Guaranteed", "a", nil, own, map[string]uint64{"memory": 8, "hugepages-2Mi": 0}},
		{"not Guaranteed", "a", nil, pod, nil},
		{"as a whole, off", "a", nil, whole, nil},
		{"as a whole", "", on, whole, map[string]uint64{"memory": 8}},
		{"own part", "a", on, whole, map[string]uint64{"memory": 8, "hugepages-2Mi": 0}},
		{"shared part", "b", on, whole, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o := memorySetup{Gates: tt.gates}.oracle(memoryState{}, &tt.pod, tt.container)
			if len(o.wants)+len(tt.want) > 0 && !reflect.DeepEqual(o.wants, tt.want) {
				t.Errorf("%v, want %v", o.wants, tt.want)
			}
		})
	}
}

func TestCutsGroup(t *testing.T) {
	t.Parallel()
	s := memoryState{Nodes: map[int]memoryNode{0: {Cells: []int{0, 1}}, 1: {Cells: []int{0, 1}}, 2: {Cells: []int{2}}}}
	for _, tt := range []struct {
		nodes []int
		want  bool
	}{
		{nil, false}, {[]int{2}, false}, {[]int{0, 1}, false}, {[]int{0, 1, 2}, false}, {[]int{0}, true}, {[]int{1, 2}, true},
	} {
		if got := s.cutsGroup(vector.Affinity{NUMA: vector.MaskOf(tt.nodes...)}); got != tt.want {
			t.Errorf("%v: %t", tt.nodes, got)
		}
	}
}

// TestLivingLedger changes the verdict and the amounts of a step of each sequence. The continuous
// ledger notices both.
func TestLivingLedger(t *testing.T) {
	t.Parallel()
	seen := 0
	eachCase(t, "memory_sequences", func(_ *Env, in memorySequence, _ struct{}) {
		for i, step := range in.Steps {
			if step.Op != "allocate" || !step.Result.OK || len(step.Result.Blocks) == 0 {
				continue
			}
			for _, spoil := range []func(*memoryStep){
				func(s *memoryStep) { s.Result.OK = false },
				func(s *memoryStep) { s.State = in.Initial },
			} {
				other := in
				other.Steps = slices.Clone(in.Steps[:i+1])
				spoil(&other.Steps[i])
				if other.live() == nil {
					t.Errorf("step %d of %s is not noticed", i, render(in))
				}
			}
			seen++
			return
		}
	})
	if seen < 10 {
		t.Errorf("%d sequences", seen)
	}
}

// TestStoredMemoryIsAskedForAgain: on nodes whose reservation exceeds their memory, too, a container keeps what it holds; another
// answer is noticed.
func TestStoredMemoryIsAskedForAgain(t *testing.T) {
	t.Parallel()
	again := 0
	eachCase(t, "memory_allocate", func(env *Env, in memoryAllocateIn, want memoryAllocated) {
		if in.Op != "allocate" || !slices.Contains(want.Quirks, "reserved_more_than_node_has") {
			return
		}
		first, err := decideMemoryAllocate(env, in)
		if err != nil || !first.Result.OK || len(first.Result.Blocks) == 0 {
			return
		}
		in.Before = first.After
		second, err := decideMemoryAllocate(env, in)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := memoryAllocateDiffers(env, in, want, second); err != nil {
			t.Errorf("%s on %v: %v", in.Container, in.Affinity, err)
		}
		second.Result.Blocks = slices.Clone(second.Result.Blocks)
		second.Result.Blocks[0].Size++
		if _, err := memoryAllocateDiffers(env, in, want, second); err == nil {
			t.Error("other blocks are not noticed")
		}
		again++
	})
	if again == 0 {
		t.Error("no case has stored memory")
	}
}
