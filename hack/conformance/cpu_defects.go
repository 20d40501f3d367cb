package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// The entries of docs/deviations.md that recordings of the CPU manager show.
const (
	torn       = "C3"  // CPUs that are not free are taken with their core
	takenTwice = "C4"  // a pod gets a second set of CPUs
	overwrites = "C5"  // the chosen nodes are overwritten
	hangs      = "C6"  // the remainder is handed out for ever
	keeps      = "C8"  // a refused pod keeps its CPUs
	doubled    = "C13" // a unit is counted twice
)

// The entries for decisions that have changed since 1.36.
const (
	acrossSockets = "U1" // align-by-socket does not restrict the distribution
	smtFirst      = "U2" // stored CPUs are checked like new ones
)

// cpuChoice is what one operation may choose from, and what its owner requests.
type cpuChoice struct {
	shared, reserved, reusable, held cpuset.Set
	// home are the CPUs of the affinity's nodes; n is the number of exclusive CPUs.
	home cpuset.Set
	n    int
	// strict keeps the reserved CPUs out of the shared pool.
	strict bool
	pod    *workload.Pod
	// whole is the operation for the pod as a whole, which holds podCPUs already.
	whole   bool
	podCPUs cpuset.Set
}

func (s cpuSetup) choice(topo *machine.Topology, before cpuState, pod *workload.Pod, container string, affinity vector.Affinity) cpuChoice {
	return cpuChoice{
		before.Default, s.Reserved, before.Reusable[pod.UID], before.Assignments[pod.UID][container],
		s.home(topo, affinity), exclusively(pod, container, s.Gates.Features()).WholeCPUs(), s.strict(), pod, container == "",
		before.PodAssignments[pod.UID],
	}
}

// free is what the operation may choose from.
func (c cpuChoice) free() cpuset.Set { return c.shared.Minus(c.reserved).Union(c.reusable) }

// mistake returns why newly allocated CPUs are not what the rules give.
func (c cpuChoice) mistake(taken cpuset.Set) string {
	switch free := c.free(); {
	case !taken.IsSubsetOf(free):
		return fmt.Sprintf("CPUs %s are taken and were not free", taken.Minus(free))
	case taken.Len() != c.n:
		return fmt.Sprintf("CPUs %s are taken, and %d were requested", taken, c.n)
	case taken.IntersectLen(c.home) < min(c.n, free.IntersectLen(c.home)):
		return fmt.Sprintf("CPUs %s are taken, and more were free where the affinity wants them", taken)
	}
	return ""
}

// strict reports whether the reserved CPUs are kept out of the shared pool.
func (s cpuSetup) strict() bool { return s.Options[cpu.StrictReservation] == "true" }

// unsound returns why a recorded answer cannot be right.
func (c cpuChoice) unsound(res cpuResult, after cpuState) string {
	taken := res.CPUSet
	switch both := c.shared.Intersect(c.reserved); {
	case c.strict && !both.IsEmpty():
		return fmt.Sprintf("reserved CPUs %s are in the shared pool", both)
	case c.whole && !c.podCPUs.IsEmpty():
		return "the pod has its CPUs already"
	case !res.OK && c.whole && !taken.IsEmpty():
		return fmt.Sprintf("the pod is refused and keeps CPUs %s", taken)
	case !res.OK:
		return ""
	}
	if stolen := taken.Minus(c.free()).Minus(c.held); !stolen.IsEmpty() {
		return fmt.Sprintf("CPUs %s are taken and were not free", stolen)
	}
	if why := c.mistake(taken); why != "" && res.Allocated && c.held.IsEmpty() {
		return why
	}
	if beyond := overlapping(c.pod, taken, after.Assignments[c.pod.UID]); c.whole && res.Allocated && !beyond.IsEmpty() {
		return fmt.Sprintf("containers have CPUs %s that are not their pod's, or another's", beyond)
	}
	return ""
}

// check holds berth's answer against the rules. A refusal requires too few CPUs, or is the
// recorded one. A success has the requested number of CPUs, all of them free before, and as many
// as possible in the affinity. The rest of the pool is unchanged.
func (c cpuChoice) check(res cpuResult, after cpuState, same bool) error {
	taken := res.CPUSet
	pool := c.shared.Minus(taken)
	if c.strict {
		pool = pool.Minus(c.reserved)
	}
	switch why := c.mistake(taken); {
	case !c.held.IsEmpty() && taken != c.held:
		return fmt.Errorf("held %s, and now %s", c.held, taken)
	case c.held.IsEmpty() && !res.OK && (c.free().Len() >= c.n && !same || !taken.IsEmpty()):
		return fmt.Errorf("refused, with %d CPUs free of %d", c.free().Len(), c.n)
	case c.held.IsEmpty() && res.OK && why != "":
		return errors.New(why)
	case after.Default != pool:
		return fmt.Errorf("the shared pool is %q and should be %q", after.Default, pool)
	}
	return nil
}

func (in cpuAllocateIn) choice(env *Env) cpuChoice {
	return in.cpuSetup.choice(env.machine(in.Topology), in.Before, in.Pod.Pod, in.Container, in.Affinity)
}

func cpuAllocateUnsound(env *Env, in cpuAllocateIn, want cpuAllocated) string {
	if in.Op == "remove" {
		want.Result = cpuResult{}
	}
	return in.choice(env).unsound(want.Result, want.After)
}

// home are the CPUs of an affinity's nodes; none without an affinity.
func (s cpuSetup) home(topo *machine.Topology, affinity vector.Affinity) cpuset.Set {
	home := topo.CPUsInNodes(affinity.NUMA.Mask)
	if s.Options[cpu.AlignBySocket] == "true" {
		home = topo.BySocket().Cover(home)
	}
	return home
}

// cpuAllocateDiffers checks rules that hold for every answer of the reference.
func cpuAllocateDiffers(env *Env, in cpuAllocateIn, want cpuAllocated, got cpuAllocated) (string, error) {
	if had := in.Before.PodAssignments[in.Pod.UID]; in.Op == "allocate_pod" && !had.IsEmpty() {
		if got.Result.CPUSet != had || got.After.Default != in.Before.Default {
			return "", fmt.Errorf("the pod held %q and now holds %q", had, got.Result.CPUSet)
		}
		return takenTwice, nil
	}
	if in.Op == "remove" { // of a state in which reserved CPUs are shared
		if pool := want.After.Default.Minus(in.Reserved); got.After.Default != pool {
			return "", fmt.Errorf("the shared pool is %q and should be %q", got.After.Default, pool)
		}
		return torn, nil
	}
	same := got.Result.OK == want.Result.OK && got.Result.sameError(want.Result)
	if in.Op == "allocate_pod" && same && !got.Result.OK && want.Result.Allocated {
		if got.Result.Allocated || got.After.differs(in.Before) != "" {
			return "", errors.New("the pod is refused and keeps something")
		}
		return keeps, nil
	}
	topo, choice := env.machine(in.Topology), in.choice(env)
	if err := choice.check(got.Result, got.After, same); err != nil {
		return "", err
	}
	switch {
	case slices.Contains(want.Quirks, "slice_aliasing"):
		return overwrites, in.overwritten(env.Reference, topo, choice, want.Result, got.Result)
	case want.Result.Error != nil && want.Result.Error.Class == "hang":
		return hangs, nil
	case crossing(topo):
		return doubled, nil
	}
	return torn, nil
}

// overwritten checks that the recorded CPUs follow from the defect, and berth's from the correct
// computation.
func (in cpuAllocateIn) overwritten(v version, topo *machine.Topology, c cpuChoice, want, got cpuResult) error {
	if err := in.spreads(topo, c.free(), c.home, want.CPUSet, c.n, in.rule(v, true)); err != nil {
		return fmt.Errorf("recorded with the defect: %w", err)
	}
	if err := in.spreads(topo, c.free(), c.home, got.CPUSet, c.n, in.rule(newest, false)); err != nil {
		return fmt.Errorf("without the defect: %w", err)
	}
	return nil
}

// crossing reports whether a socket or cache of a machine has CPUs on several NUMA
// nodes without containing these.
func crossing(topo *machine.Topology) bool {
	for _, units := range []*machine.Partition{topo.BySocket(), topo.ByUncore()} {
		for i := range units.Len() {
			for at := range topo.ByNode().Touched(units.CPUs(i)) {
				if node := topo.ByNode().CPUs(at); !node.IsSubsetOf(units.CPUs(i)) && !units.CPUs(i).IsSubsetOf(node) {
					return true
				}
			}
		}
	}
	return false
}

// cpuAllocateRepair repairs the states around a step.
func cpuAllocateRepair(in *cpuAllocateIn, want *cpuAllocated) {
	in.Before, want.After = in.mended(in.Before, in.Pod.UID), in.mended(want.After, in.Pod.UID)
}

// mended is a recorded state without the CPUs that the defect has added to the shared pool: CPUs
// of the current pod, and reserved CPUs if the pool excludes them.
func (s cpuSetup) mended(state cpuState, uid string) cpuState {
	for _, set := range state.Assignments[uid] {
		state.Default = state.Default.Minus(set)
	}
	if s.strict() {
		state.Default = state.Default.Minus(s.Reserved)
	}
	return state
}

// cpuAllocateEarlier checks decisions that kubelets before 1.37 made in another way.
func cpuAllocateEarlier(env *Env, in cpuAllocateIn, want cpuAllocated, got cpuAllocated) (string, error) {
	topo, c := env.machine(in.Topology), in.choice(env)
	if err := c.check(got.Result, got.After, false); err != nil {
		return "", err
	}
	if refused := want.Result.Error; refused != nil && refused.Type == "SMTAlignmentError" {
		if c.held.IsEmpty() || !got.Result.OK {
			return smtFirst, errors.New("refused, and the container has no CPUs")
		}
		return smtFirst, nil
	}
	if in.Options[cpu.DistributeAcrossNUMA] != "true" || in.Options[cpu.AlignBySocket] != "true" {
		return "", errors.New("no rule has changed for these options")
	}
	if err := in.spreads(topo, c.free(), c.home, want.Result.CPUSet, c.n,
		in.rule(env.Reference, slices.Contains(want.Quirks, "slice_aliasing"))); err != nil {
		return acrossSockets, fmt.Errorf("recorded: %w", err)
	}
	if err := in.spreads(topo, c.free(), c.home, got.Result.CPUSet, c.n, in.rule(newest, false)); err != nil {
		return acrossSockets, fmt.Errorf("decided: %w", err)
	}
	return acrossSockets, nil
}
