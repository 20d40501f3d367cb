package main

import (
	"cmp"
	"errors"

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

func (b *cpuBench) planned(s cpuState, _, after *ledger.View, owner ledger.Owner, claims []ledger.Claim,
	refusal error) (cpuResult, cpuState) {
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
	class := ""
	var smt *cpu.SMTAlignmentError
	var short *cpu.ShortageError
	var empty *cpu.EmptyPodPoolError
	switch {
	case errors.As(err, &smt) && smt.NotEnough:
		class = "smt_not_enough_physical"
	case errors.As(err, &smt):
		class = "smt_not_multiple"
	case errors.As(err, &short):
		class = "not_enough_cpus"
	case errors.As(err, &empty):
		class = "empty_pod_shared_pool"
	}
	return recordedError(err, class)
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

// cpuAllocate: one operation of the static policy. cpuSequences: many of them in a row.
var (
	cpuOperation = Plan[cpuAllocateIn, cpuAllocated, cpuAllocated]{
		Decide:  decideCPUAllocate,
		Compare: compareCPUAllocate,
		Differs: cpuAllocateDiffers,
		Earlier: cpuAllocateEarlier,
		Better:  cpuAllocateBetter,
		Unsound: cpuAllocateUnsound,
		Repair:  cpuAllocateRepair,
	}
	cpuAllocate  = Define("cpu_allocate", cpuOperation)
	cpuSequences = DefineSequence("cpu_sequences", cpuOperation)
)

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
	return operate(b, in.operation)
}

func compareCPUAllocate(_ cpuAllocateIn, want, got cpuAllocated) string {
	return cmp.Or(got.Result.differs(want.Result), got.After.differs(want.After))
}

// cpuHints: hints for every container of a pod, and for the pod.
var cpuHints = Define("cpu_hints", Plan[cpuHintsIn, recordedHints, podHints]{
	Decide:  decideCPUHints,
	Compare: compareHints[cpuHintsIn],
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
	return hintsFor(b, in.Pod.Pod, func(pod *workload.Pod, next string) *ledger.View { return b.view(in.State, pod, next) })
}
