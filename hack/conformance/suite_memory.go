package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
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
	if err == nil {
		return nil
	}
	e := otherError(err)
	var place *memory.PlacementError
	var empty *memory.EmptyPodPoolError
	switch {
	case errors.As(err, &place):
		e.Class = map[memory.Problem]string{
			memory.NoDefault:            "no_default_affinity",
			memory.NoPreferredDefault:   "no_default_preferred",
			memory.NoExtension:          "no_extension",
			memory.NoPreferredExtension: "no_extended_preferred",
			memory.GroupTaken:           "violates_numa",
		}[place.Problem]
	case errors.As(err, &empty):
		e.Class = "empty_pod_shared_pool"
	}
	return e
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
var memoryAllocate = Define("memory_allocate", Plan[memoryAllocateIn, memoryAllocated, memoryAllocated]{
	Decide:  decideMemoryAllocate,
	Compare: compareMemoryAllocate,
	Differs: memoryAllocateDiffers,
	Unsound: memoryAllocateUnsound,
})

type memoryAllocateIn struct {
	memorySetup
	operation[memoryState]
}

type memoryAllocated = operated[memoryResult, memoryState]

func decideMemoryAllocate(_ *Env, in memoryAllocateIn) (got memoryAllocated, err error) {
	b, err := in.bench(in.Before)
	if err != nil {
		return got, err
	}
	return decide(b, in.operation)
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
	return in.Op == "allocate_pod" && want.Result.OK && b.Size > 0 && b.Size < wrapped && !slices.ContainsFunc(want.After.PodAssignments[in.Pod.UID], of)
}

// withoutWrapped returns blocks without negative ones.
func withoutWrapped(held map[string][]memoryBlock) map[string][]memoryBlock {
	out := map[string][]memoryBlock{}
	for name, blocks := range held {
		out[name] = slices.DeleteFunc(slices.Clone(blocks), func(b memoryBlock) bool { return b.Size > wrapped })
	}
	return out
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
		want.After.Assignments = maps.Clone(want.After.Assignments)
		want.After.Assignments[in.Pod.UID] = withoutWrapped(want.After.Assignments[in.Pod.UID])
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
var memoryHints = Define("memory_hints", Plan[memoryHintsIn, memoryHintsWant, podHints]{
	Decide:  decideMemoryHints,
	Compare: compareMemoryHints,
	Differs: memoryHintsDiffer,
})

type memoryHintsIn struct {
	memorySetup
	Pod   vector.Pod  `json:"pod"`
	State memoryState `json:"state"`
}

type memoryHintsWant struct {
	podHints
	Quirks []string `json:"quirks"`
	Panic  string   `json:"panic"`
}

func decideMemoryHints(_ *Env, in memoryHintsIn) (podHints, error) {
	b, err := in.bench(in.State)
	if err != nil {
		return podHints{}, err
	}
	return hintsFor(b, in.Pod.Pod, func(pod *workload.Pod, next string) *ledger.View { return b.view(in.State, pod, next) })
}

func compareMemoryHints(_ memoryHintsIn, want memoryHintsWant, got podHints) string {
	if want.Panic != "" {
		return "an answer where the reference has none"
	}
	return got.differs(want.podHints)
}

// memoryHintsDiffer holds every answer against the definition of the family.
func memoryHintsDiffer(_ *Env, in memoryHintsIn, want memoryHintsWant, got podHints) (string, error) {
	for name, answer := range got.ContainerHints {
		o := in.oracle(in.State, in.Pod.Pod, name)
		if len(in.State.Assignments[in.Pod.UID][name]) == 0 && !reflect.DeepEqual(o.hints(), answer) {
			return "", fmt.Errorf("container %s: by definition %s", name, render(o.hints()))
		}
	}
	return memoryDeviation(want.Quirks)
}

// memorySequences: a machine's life.
var memorySequences = Define("memory_sequences", Plan[memorySequencesIn, memoryLived, []memoryStepped]{
	Decide:  decideMemorySequences,
	Compare: compareMemorySequences,
})

type memorySequencesIn struct {
	memorySetup
	sequence[memoryState]
}

type (
	memoryLived   = lived[memoryResult, memoryState]
	memoryStepped = stepped[memoryResult, memoryState]
)

// decideMemorySequences decides the steps twice: once each on the state that the previous step
// led to, with the reference's counting of releases, and once in one continuous ledger, where a
// release removes claims. Both must agree in every decision and in the amounts of every group.
// This ends when a part of a group is considered alone, because its free memory depends on the
// counting of releases.
func decideMemorySequences(_ *Env, in memorySequencesIn) ([]memoryStepped, error) {
	b, err := in.bench(in.Initial)
	if err != nil {
		return nil, err
	}
	life := &memoryLife{bench: b, view: b.base, partly: map[string]bool{}}
	var got []memoryStepped
	state, comparable := in.Initial, true
	for i, step := range in.Steps {
		pod := in.Pods[step.Pod].Pod
		var res memoryResult
		comparable = comparable && (step.Op != "allocate" || !state.cutsGroup(step.Affinity))
		res, state, err = operate(b, step.Op, state, pod, step.Container, step.Affinity)
		g := memoryStepped{Result: &res}
		if step.Op == "allocate" && res.OK && len(res.Blocks) > 0 {
			g.uid = pod.UID
		}
		if comparable = comparable && !state.overlapping(); err == nil && comparable {
			err = life.follow(step, pod, res, state)
		}
		if err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		g.State = state
		got = append(got, g)
	}
	return got, nil
}

// memoryLife is a ledger that is used for a whole sequence.
type memoryLife struct {
	bench *memoryBench
	view  *ledger.View
	// partly are the pods with some init containers removed and others not. Here the rest keeps
	// its reusable memory, while the reference has subtracted the part of the removed ones.
	partly map[string]bool
}

// follow executes one step and compares its result with the expected one.
func (l *memoryLife) follow(step step, pod *workload.Pod, result memoryResult, state memoryState) error {
	draft := ledger.NewDraft(l.view)
	record, known := l.view.Pod(pod.UID)
	if !known {
		record = &ledger.Pod{Pod: *pod}
		draft.PutPod(record)
	}
	if step.Op == "remove" {
		kept := *record
		kept.Claims = slices.DeleteFunc(slices.Clone(record.Claims), func(c ledger.Claim) bool {
			return c.Owner.Container == step.Container
		})
		draft.PutPod(&kept)
		if c := pod.Container(step.Container); c != nil && c.Role.Feeds() {
			l.partly[pod.UID] = true
		}
		if len(kept.Claims) == 0 || !slices.ContainsFunc(kept.Claims, func(c ledger.Claim) bool {
			return pod.Container(c.Owner.Container).Role.Feeds()
		}) {
			delete(l.partly, pod.UID)
		}
	} else {
		claims, refusal := l.bench.Plan(context.Background(), draft.View(), request(pod, step.Container), step.Affinity.Hint())
		draft.AddClaims(pod.UID, claims...)
		held, _ := draft.View().Pod(pod.UID)
		mine := memoryResult{OK: refusal == nil, Error: memoryError(refusal), Blocks: blocksOf(held, step.Container)}
		if diff := mine.differs(result); diff != "" {
			return fmt.Errorf("in a living ledger: %s: %s", diff, render(mine))
		}
	}
	l.view = draft.View()
	if findings := ledger.Check(l.view); len(findings) > 0 {
		return fmt.Errorf("in a living ledger: %s", findings[0])
	}
	mine := memoryState{}.with(l.bench.State(l.bench.base), l.bench.State(l.view), record, nil)
	if len(l.partly) == 0 && !maps.Equal(mine.groupSums(), state.groupSums()) {
		return fmt.Errorf("in a living ledger, groups hold %v instead of %v", mine.groupSums(), state.groupSums())
	}
	return nil
}

func compareMemorySequences(_ memorySequencesIn, want memoryLived, got []memoryStepped) string {
	return eachStep(len(want.Steps), func(i int) string {
		w, diff := want.Steps[i], ""
		if w.Result != nil {
			diff = got[i].Result.differs(*w.Result)
		}
		return cmp.Or(diff, got[i].State.differs(w.State, got[i].uid))
	})
}
