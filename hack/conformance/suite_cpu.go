package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// cpuResult is what an operation did. The set is the owner's afterwards.
type cpuResult struct {
	OK        bool          `json:"ok"`
	Allocated bool          `json:"allocated"`
	CPUSet    cpuset.Set    `json:"cpuset"`
	Error     *vector.Error `json:"error"`
}

func (b *cpuBench) planned(s cpuState, _, after *ledger.View, owner ledger.Owner, claims []ledger.Claim, refusal error) (cpuResult, cpuState) {
	res := cpuResult{OK: refusal == nil, Error: cpuError(refusal)}
	if claim, ok := after.Claim(owner, cpu.Resource); ok {
		res.Allocated, res.CPUSet = true, claim.CPUs.Set
	}
	return res, s.with(after, claims)
}

func (b *cpuBench) removed(s cpuState, pod *workload.Pod, container string) (cpuResult, cpuState) {
	s = s.without(pod.UID, container)
	return cpuResult{OK: true}, s.with(b.view(s, pod, ""), nil)
}

// cpuError gives an error of the manager in the recordings' classes.
func cpuError(err error) *vector.Error {
	if err == nil {
		return nil
	}
	e := otherError(err)
	var smt *cpu.SMTAlignmentError
	var short *cpu.ShortageError
	var empty *cpu.EmptyPodPoolError
	switch {
	case errors.As(err, &smt) && smt.NotEnough:
		e.Class = "smt_not_enough_physical"
	case errors.As(err, &smt):
		e.Class = "smt_not_multiple"
	case errors.As(err, &short):
		e.Class = "not_enough_cpus"
	case errors.As(err, &empty):
		e.Class = "empty_pod_shared_pool"
	}
	return e
}

func (r cpuResult) differs(want cpuResult) string {
	switch {
	case r.OK != want.OK:
		return "verdict"
	case r.Allocated != want.Allocated || r.CPUSet != want.CPUSet:
		return "CPUs"
	case !r.sameError(want):
		return "error"
	}
	return ""
}

// sameError compares the errors of two refusals.
func (r cpuResult) sameError(want cpuResult) bool {
	return r.OK || want.OK || r.Error.Class == want.Error.Class && r.Error.Type == want.Error.Type
}

// cpuAllocate: one operation of the static policy.
var cpuAllocate = Define("cpu_allocate", Plan[cpuAllocateIn, cpuAllocated, cpuAllocated]{
	Decide:  decideCPUAllocate,
	Compare: compareCPUAllocate,
	Differs: cpuAllocateDiffers,
	Unsound: cpuAllocateUnsound,
})

type cpuAllocateIn struct {
	cpuSetup
	operation[cpuState]
}

type cpuAllocated = operated[cpuResult, cpuState]

func decideCPUAllocate(env *Env, in cpuAllocateIn) (got cpuAllocated, err error) {
	b, err := in.bench(env)
	if err != nil {
		return got, err
	}
	got, err = decide(b, in.operation)
	got.Chose = b.chose
	return got, err
}

func compareCPUAllocate(_ cpuAllocateIn, want cpuAllocated, got cpuAllocated) string {
	if diff := got.Result.differs(want.Result); diff != "" {
		return diff
	}
	if diff := got.After.differs(want.After); diff != "" {
		return diff
	}
	return otherReserve(got.Chose)
}

// otherReserve is the difference of a manager that would have reserved other CPUs.
func otherReserve(chose string) string {
	if chose == "" {
		return ""
	}
	return "reserved CPUs"
}

// cpuHints: hints for every container of a pod, and for the pod.
var cpuHints = Define("cpu_hints", Plan[cpuHintsIn, podHints, podHints]{
	Decide:  decideCPUHints,
	Compare: compareCPUHints,
	Differs: cpuHintsDiffer,
	Unsound: func(env *Env, in cpuHintsIn, _ podHints) string { return in.unlikeReserve(env) },
})

type cpuHintsIn struct {
	cpuSetup
	Pod   vector.Pod `json:"pod"`
	State cpuState   `json:"state"`
}

func decideCPUHints(env *Env, in cpuHintsIn) (podHints, error) {
	b, err := in.bench(env)
	if err != nil {
		return podHints{}, err
	}
	got, err := hintsFor(b, in.Pod.Pod, func(pod *workload.Pod, next string) *ledger.View { return b.view(in.State, pod, next) })
	got.Chose = b.chose
	return got, err
}

func compareCPUHints(_ cpuHintsIn, want, got podHints) string { return got.differs(want) }

// cpuSequences: a machine's life.
var cpuSequences = Define("cpu_sequences", Plan[cpuSequencesIn, cpuLived, []cpuStepped]{
	Decide:  decideCPUSequences,
	Compare: compareCPUSequences,
	Differs: cpuSequencesDiffer,
	Unsound: cpuSequencesUnsound,
})

type cpuSequencesIn struct {
	cpuSetup
	sequence[cpuState]
}

type (
	cpuLived   = lived[cpuResult, cpuState]
	cpuStepped = stepped[cpuResult, cpuState]
)

func decideCPUSequences(env *Env, in cpuSequencesIn) ([]cpuStepped, error) {
	b, err := in.bench(env)
	if err != nil {
		return nil, err
	}
	var got []cpuStepped
	state := in.Initial
	for i, step := range in.Steps {
		var res *cpuResult
		if res, state, err = in.decideStep(b, step, state); err != nil {
			return nil, fmt.Errorf("step %d: %w", i, err)
		}
		got = append(got, cpuStepped{Result: res, State: state, Chose: b.chose})
	}
	return got, nil
}

func (in cpuSequencesIn) decideStep(b *cpuBench, step step, state cpuState) (*cpuResult, cpuState, error) {
	pod := in.Pods[step.Pod].Pod
	res, next, err := operate(b, step.Op, state, pod, step.Container, step.Affinity)
	next.Reusable = state.Reusable
	if step.Op == "allocate" && res.OK && res.Allocated {
		next.Reusable = handedOn(state.Reusable, pod, step.Container, res.CPUSet)
	}
	return &res, next, err
}

// handedOn is what the reference remembers as reusable after a container got
// CPUs: that of its pod only.
func handedOn(reusable cpuSets, pod *workload.Pod, container string, set cpuset.Set) cpuSets {
	if pod.Container(container).Role.Feeds() {
		return cpuSets{pod.UID: reusable[pod.UID].Union(set)}
	}
	return cpuSets{pod.UID: reusable[pod.UID].Minus(set)}
}

func compareCPUSequences(_ cpuSequencesIn, want cpuLived, got []cpuStepped) string {
	diff := eachStep(len(want.Steps), func(i int) string {
		w, diff := want.Steps[i], ""
		if w.Result != nil && got[i].Result != nil {
			diff = got[i].Result.differs(*w.Result)
		}
		return cmp.Or(diff, got[i].State.differs(w.State))
	})
	if diff == "" && len(got) > 0 {
		return otherReserve(got[0].Chose)
	}
	return diff
}
