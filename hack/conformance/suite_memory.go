package main

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

// memoryResult is what an operation did. The blocks are the owner's afterwards.
type memoryResult struct {
	OK     bool          `json:"ok"`
	Blocks []memoryBlock `json:"blocks"`
	Error  *vector.Error `json:"error"`
}

// memoryError gives an error of the manager in the recordings' classes.
func memoryError(err error) *vector.Error {
	class := ""
	var place *memory.PlacementError
	var empty *memory.EmptyPodPoolError
	switch {
	case errors.As(err, &place):
		class = map[memory.Problem]string{
			memory.NoDefault:            "no_default_affinity",
			memory.NoPreferredDefault:   "no_default_preferred",
			memory.NoExtension:          "no_extension",
			memory.NoPreferredExtension: "no_extended_preferred",
			memory.GroupTaken:           "violates_numa",
		}[place.Problem]
	case errors.As(err, &empty):
		class = "empty_pod_shared_pool"
	}
	return recordedError(err, class)
}

// differs compares results; users search for the texts of placement errors, so
// these have to be the same.
func (r memoryResult) differs(want memoryResult) string {
	switch {
	case r.OK != want.OK:
		return "verdict"
	case !slices.Equal(r.Blocks, want.Blocks):
		return "blocks"
	case !r.OK && (r.Error.Class != want.Error.Class || r.Error.Type != want.Error.Type):
		return "error"
	case !r.OK && r.Error.Class != "empty_pod_shared_pool" && r.Error.Message != want.Error.Message:
		return "text of the error"
	}
	return ""
}

// memoryAllocate: one operation of the static policy.
var (
	memoryOperation = Plan[memoryAllocateIn, memoryAllocated, memoryAllocated]{
		Decide:  decideMemoryAllocate,
		Compare: compareMemoryAllocate,
		Differs: memoryAllocateDiffers,
		Unsound: memoryAllocateUnsound,
	}
	memoryAllocate = Define("memory_allocate", memoryOperation)
)

type memoryAllocateIn struct {
	memorySetup
	operation[memoryState]
}

type memoryAllocated = operated[memoryResult, memoryState]

func decideMemoryAllocate(_ *Env, in memoryAllocateIn) (got memoryAllocated, err error) {
	b, err := in.bench(in.Before, true)
	if err != nil {
		return got, err
	}
	return operate(b, in.operation)
}

func compareMemoryAllocate(in memoryAllocateIn, want memoryAllocated, got memoryAllocated) string {
	if diff := got.Result.differs(want.Result); diff != "" {
		return diff
	}
	uid := ""
	if _, held := in.Before.Assignments[in.Pod.UID][in.Container]; !held && in.Op == "allocate" && got.Result.OK {
		uid = in.Pod.UID
	}
	return got.After.differs(want.After, uid)
}

// wrapped is more than any machine's memory: a greater amount is negative.
const wrapped = 1 << 60

// memoryAllocateUnsound finds negative amounts of containers in a pod with pod-level resources,
// or amounts of a resource that the pod does not have.
func memoryAllocateUnsound(_ *Env, in memoryAllocateIn, want memoryAllocated) string {
	for name, blocks := range want.After.Assignments[in.Pod.UID] {
		for _, b := range blocks {
			if b.Size > wrapped {
				return fmt.Sprintf("%s holds %d bytes of %s", name, b.Size, b.Type)
			}
			if in.uncounted(want, b) {
				return fmt.Sprintf("%s holds %d bytes of %s, and its pod none", name, b.Size, b.Type)
			}
		}
	}
	return ""
}

// uncounted reports whether a container has a block of what its pod as a whole, which
// was just planned, has nothing of.
func (in memoryAllocateIn) uncounted(want memoryAllocated, b memoryBlock) bool {
	of := func(whole memoryBlock) bool { return whole.Type == b.Type }
	return in.Op == "allocate_pod" && want.Result.OK && b.Size > 0 && b.Size < wrapped &&
		!slices.ContainsFunc(want.After.PodAssignments[in.Pod.UID], of)
}

// memoryAllocateDiffers checks rules that hold for every answer of the reference.
func memoryAllocateDiffers(_ *Env, in memoryAllocateIn, want memoryAllocated, got memoryAllocated) (string, error) {
	if len(want.Quirks) == 0 && want.Result.OK && in.Op == "allocate_pod" {
		for _, blocks := range want.After.Assignments[in.Pod.UID] {
			if slices.ContainsFunc(blocks, func(b memoryBlock) bool { return in.uncounted(want, b) }) {
				if got.Result.OK {
					return "", errors.New("pages that the pod does not have are given to its containers")
				}
				return wrapsAround, sameTables(in.Before, got.After)
			}
		}
		want.After = want.After.clone()
		for name, blocks := range want.After.Assignments[in.Pod.UID] {
			want.After.Assignments[in.Pod.UID][name] = slices.DeleteFunc(blocks, func(b memoryBlock) bool { return b.Size > wrapped })
		}
		if diff := compareMemoryAllocate(in, want, got); diff != "" {
			return "", errors.New(diff)
		}
		return wrapsAround, nil
	}
	if slices.Contains(want.Quirks, "pod_allocated_twice") {
		if held := in.Before.PodAssignments[in.Pod.UID]; !slices.Equal(got.Result.Blocks, held) {
			return "", fmt.Errorf("the pod held %v and now holds %v", held, got.Result.Blocks)
		}
		return "N4", sameTables(in.Before, got.After)
	}
	if held := in.Before.Assignments[in.Pod.UID][in.Container]; in.Op == "allocate" && len(held) > 0 {
		if !got.Result.OK || !slices.Equal(got.Result.Blocks, held) {
			return "", fmt.Errorf("the container held %v and now holds %v", held, got.Result.Blocks)
		}
		if err := sameTables(in.Before, got.After); err != nil {
			return "", err
		}
		return memoryDeviation(want.Quirks)
	}
	o := in.oracle(in.Before, in.Pod.Pod, in.Container)
	if err := o.tables(got.After); err != nil {
		return "", err
	}
	if err := o.judge(in.Affinity.Hint(), got.Result); err != nil {
		return "", err
	}
	return memoryDeviation(want.Quirks)
}

// unknownSize is the entry about page sizes that a node does not have.
const unknownSize = "N1"

// memoryDeviation is the entry about a quirk.
func memoryDeviation(quirks []string) (string, error) {
	switch {
	case slices.Contains(quirks, "reserved_more_than_node_has"):
		return "N2", nil
	case slices.Contains(quirks, "hugepage_size_missing"), slices.Contains(quirks, "hugepage_size_missing_on_a_node"):
		return unknownSize, nil
	}
	return "", fmt.Errorf("no entry is about the quirks %q", quirks)
}

// sameTables checks that nothing was taken.
func sameTables(before, after memoryState) error {
	for id, node := range before.Nodes {
		for name, t := range node.Memory {
			if got := after.Nodes[id].Memory[name].Reserved; got != t.Reserved {
				return fmt.Errorf("on node %d, %d bytes of %s were held, and now %d are", id, t.Reserved, name, got)
			}
		}
	}
	return nil
}

// memoryHints: hints for every container of a pod, and for the pod.
var memoryHints = Define("memory_hints", Plan[memoryHintsIn, recordedHints, podHints]{
	Decide:  decideMemoryHints,
	Compare: compareHints[memoryHintsIn],
	Differs: memoryHintsDiffer,
	Better:  memoryHintsBetter,
})

// earlierOnly is the entry for pods in pod scope that request a resource only in init containers or sidecars.
const earlierOnly = "N14"

// requestedEarlier returns a memory resource that only init containers or sidecars of a pod request.
func requestedEarlier(pod *workload.Pod) (only workload.Resource) {
	app := workload.Quantities{}
	for _, c := range pod.Walk() {
		for r := range c.Requests {
			if c.Role == workload.App {
				app[r] = 1
			}
		}
	}
	for _, c := range pod.Walk() {
		for r := range c.Requests {
			if app[r] == 0 && (r == workload.Memory || r.IsHugePages()) {
				only = r
			}
		}
	}
	return only
}

// memoryHintsBetter checks that only the hints for the pod differ, and that they have the resource that the
// kubelet leaves out.
func memoryHintsBetter(_ *Env, in memoryHintsIn, asKubelet, got podHints) (string, error) {
	only := requestedEarlier(in.Pod.Pod)
	_, counted := got.PodHints[string(only)]
	switch {
	case only == "" || !reflect.DeepEqual(asKubelet.ContainerHints, got.ContainerHints):
		return "", errors.New("the hints differ, and every resource is requested by an app container")
	case !counted && got.PodHints != nil:
		return "", fmt.Errorf("there are hints, and none for %s", only)
	}
	return earlierOnly, nil
}

type memoryHintsIn struct {
	memorySetup
	Pod   vector.Pod  `json:"pod"`
	State memoryState `json:"state"`
}

func decideMemoryHints(env *Env, in memoryHintsIn) (podHints, error) {
	b, err := in.bench(in.State, env.asKubelet)
	if err != nil {
		return podHints{}, err
	}
	return hintsFor(b, in.Pod.Pod, func(pod *workload.Pod, next string) *ledger.View { return b.view(in.State, pod, next) })
}

// memoryHintsDiffer holds every answer against the definition of the family.
func memoryHintsDiffer(_ *Env, in memoryHintsIn, want recordedHints, got podHints) (string, error) {
	for name, answer := range got.ContainerHints {
		o := in.oracle(in.State, in.Pod.Pod, name)
		if len(in.State.Assignments[in.Pod.UID][name]) == 0 && !reflect.DeepEqual(o.hints(), answer) {
			return "", fmt.Errorf("container %s: by definition %s", name, render(o.hints()))
		}
	}
	return memoryDeviation(want.Quirks)
}
