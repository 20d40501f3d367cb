package main

import (
	"cmp"
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

// cpuPool is what one operation may take from.
type cpuPool struct {
	shared, reserved, reusable, held cpuset.Set
}

func (s cpuSetup) pool(state cpuState, uid, container string) cpuPool {
	return cpuPool{state.Default, s.Reserved, state.Reusable[uid], state.Assignments[uid][container]}
}

// free is what the operation may choose from.
func (p cpuPool) free() cpuset.Set { return p.shared.Minus(p.reserved).Union(p.reusable) }

// strict reports whether the reserved CPUs are kept out of the shared pool.
func (s cpuSetup) strict() bool { return s.Options[cpu.StrictReservation] == "true" }

// unsoundStep returns why a recorded operation cannot be right for its recorded state.
func (s cpuSetup) unsoundStep(topo *machine.Topology, before cpuState, pod *workload.Pod, container string,
	affinity vector.Affinity, res cpuResult, after cpuState,
) string {
	p := s.pool(before, pod.UID, container)
	if both := p.shared.Intersect(p.reserved); s.strict() && !both.IsEmpty() {
		return fmt.Sprintf("reserved CPUs %s are in the shared pool", both)
	}
	if container == "" && !before.PodAssignments[pod.UID].IsEmpty() {
		return "the pod has its CPUs already"
	}
	taken := res.CPUSet
	if !res.OK {
		if container == "" && !taken.IsEmpty() {
			return fmt.Sprintf("the pod is refused and keeps CPUs %s", taken)
		}
		return ""
	}
	if stolen := taken.Minus(p.free()).Minus(p.held); !stolen.IsEmpty() {
		return fmt.Sprintf("CPUs %s are taken and were not free", stolen)
	}
	if n := s.asked(pod, container); res.Allocated && p.held.IsEmpty() {
		home := s.home(topo, affinity)
		switch {
		case taken.Len() != n:
			return fmt.Sprintf("CPUs %s are taken, and %d were asked for", taken, n)
		case taken.IntersectLen(home) < min(n, p.free().IntersectLen(home)):
			return fmt.Sprintf("CPUs %s are taken, and more were free where the affinity wants them", taken)
		}
	}
	if container == "" && res.Allocated {
		if beyond := overlapping(pod, taken, after.Assignments[pod.UID]); !beyond.IsEmpty() {
			return fmt.Sprintf("containers have CPUs %s that are not their pod's, or another's", beyond)
		}
	}
	return ""
}

func cpuAllocateUnsound(env *Env, in cpuAllocateIn, want cpuAllocated) string {
	if why := in.unlikeReserve(env); why != "" {
		return why
	}
	if in.Op == "remove" {
		want.Result = cpuResult{}
	}
	return in.unsoundStep(env.machine(in.Topology), in.Before, in.Pod.Pod, in.Container, in.Affinity, want.Result, want.After)
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
	if got.Chose != "" {
		if got.Chose = ""; compareCPUAllocate(in, want, got) == "" {
			return overwrites, nil
		}
	}
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
	topo := env.machine(in.Topology)
	if err := in.holdsStep(topo, in.Before, in.Pod.Pod, in.Container, in.Affinity, got.Result, got.After, same); err != nil {
		return "", err
	}
	switch {
	case slices.Contains(want.Quirks, "slice_aliasing"):
		return overwrites, in.overwritten(topo, want.Result, got.Result)
	case want.Result.Error != nil && want.Result.Error.Class == "hang":
		return hangs, nil
	case crossing(topo):
		return doubled, nil
	}
	return torn, nil
}

// overwritten checks that the recorded CPUs follow from the defect, and berth's from the correct
// computation.
func (in cpuAllocateIn) overwritten(topo *machine.Topology, want, got cpuResult) error {
	p, home, n := in.pool(in.Before, in.Pod.UID, in.Container), in.home(topo, in.Affinity), in.asked(in.Pod.Pod, in.Container)
	if err := in.spreads(topo, p.free(), home, want.CPUSet, n, true); err != nil {
		return fmt.Errorf("recorded with the defect: %w", err)
	}
	if err := in.spreads(topo, p.free(), home, got.CPUSet, n, false); err != nil {
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

// holdsStep checks an operation against the rules. A refusal requires too few CPUs. A success has
// the requested number of CPUs, all of them free before, and as many as possible in the affinity.
// The rest of the pool is unchanged. A refusal with the recorded reason is accepted.
func (s cpuSetup) holdsStep(topo *machine.Topology, before cpuState, pod *workload.Pod, container string,
	affinity vector.Affinity, res cpuResult, after cpuState, same bool,
) error {
	p, home, taken := s.pool(before, pod.UID, container), s.home(topo, affinity), res.CPUSet
	pool := p.shared.Minus(taken)
	if s.strict() {
		pool = pool.Minus(p.reserved)
	}
	n := s.asked(pod, container)
	switch {
	case !p.held.IsEmpty():
		if taken != p.held {
			return fmt.Errorf("held %s, and now %s", p.held, taken)
		}
	case !res.OK && (p.free().Len() >= n && !same || !taken.IsEmpty()):
		return fmt.Errorf("refused, with %d CPUs free of %d", p.free().Len(), n)
	case !res.OK:
	case taken.Len() != n:
		return fmt.Errorf("%d CPUs instead of %d", taken.Len(), n)
	case !taken.IsSubsetOf(p.free()):
		return fmt.Errorf("CPUs %s were not free", taken.Minus(p.free()))
	case taken.IntersectLen(home) < min(n, p.free().IntersectLen(home)):
		return errors.New("the affinity is not followed")
	}
	if after.Default != pool {
		return fmt.Errorf("the shared pool is %q and should be %q", after.Default, pool)
	}
	return nil
}

// asked is the number of exclusive CPUs that the owner requests.
func (s cpuSetup) asked(pod *workload.Pod, container string) int {
	f := workload.Features{
		PodLevelResources:        s.Gates.On(vector.PodLevelResources),
		PodLevelResourceManagers: s.Gates.On(vector.PodLevelResourceManagers),
	}
	whole := pod.HasPodLevel()
	switch {
	case pod.QoSClass(f) != workload.Guaranteed, whole && !f.PodLevelResourceManagers:
		return 0
	case container == "":
		return pod.Resources.Requests.WholeCPUs()
	}
	c := pod.Container(container)
	if whole && !c.Guaranteed() {
		return 0
	}
	return c.Requests.WholeCPUs()
}

// unsoundAt returns the first recorded step that cannot be right; -1 if there is none.
func (in cpuSequencesIn) unsoundAt(env *Env, want cpuLived) (step int, why string) {
	topo, before := env.machine(in.Topology), in.Initial
	for i, w := range want.Steps {
		if w.Result != nil {
			if why := in.unsoundStep(topo, before, in.Pods[in.Steps[i].Pod].Pod, in.Steps[i].Container, in.Steps[i].Affinity, *w.Result, w.State); why != "" {
				return i, why
			}
		}
		before = w.State
	}
	return -1, ""
}

func cpuSequencesUnsound(env *Env, in cpuSequencesIn, want cpuLived) string {
	if why := in.unlikeReserve(env); why != "" {
		return why
	}
	_, why := in.unsoundAt(env, want)
	return why
}

// cpuHintsDiffer accepts only a difference of the reserved CPUs; hints must be equal.
func cpuHintsDiffer(_ *Env, in cpuHintsIn, want, got podHints) (string, error) {
	got.Chose = ""
	if diff := compareCPUHints(in, want, got); diff != "" {
		return "", errors.New(diff)
	}
	return overwrites, nil
}

// cpuSequencesDiffer checks that berth agrees with the recording before its first wrong step, and
// follows the rules from there on.
func cpuSequencesDiffer(env *Env, in cpuSequencesIn, want cpuLived, got []cpuStepped) (string, error) {
	if len(got) > 0 && got[0].Chose != "" {
		got = slices.Clone(got)
		if got[0].Chose = ""; compareCPUSequences(in, want, got) == "" {
			return overwrites, nil
		}
	}
	wrong, _ := in.unsoundAt(env, want)
	if wrong < 0 {
		return "", errors.New("the recording is sound")
	}
	if diff := compareCPUSequences(in, cpuLived{want.Steps[:wrong]}, got); diff != "" {
		return "", errors.New(diff)
	}
	topo := env.machine(in.Topology)
	if err := in.stepByStep(env, topo, want, wrong); err != nil {
		return "", err
	}
	before := in.Initial
	for i, step := range in.Steps {
		if i >= wrong && step.Op == "allocate" && got[i].Result.Allocated {
			if err := in.holdsStep(topo, before, in.Pods[step.Pod].Pod, step.Container, step.Affinity, *got[i].Result, got[i].State, false); err != nil {
				return "", fmt.Errorf("step %d: %w", i, err)
			}
		}
		before = got[i].State
	}
	if crossing(topo) {
		return doubled, nil
	}
	return torn, nil
}

// stepByStep decides the steps from one on by themselves, each on the recorded
// state before it without the defect in it. A step that was recorded rightly has to
// lead to the recorded result and state, any other one keeps the rules.
func (in cpuSequencesIn) stepByStep(env *Env, topo *machine.Topology, want cpuLived, from int) error {
	b, err := in.bench(env)
	if err != nil {
		return err
	}
	for i := max(from, 1); i < len(in.Steps); i++ {
		step, w, pod := in.Steps[i], want.Steps[i], in.Pods[in.Steps[i].Pod].Pod
		before, after := in.mended(want.Steps[i-1].State, step.Pod), in.mended(w.State, step.Pod)
		res, state, err := in.decideStep(b, step, before)
		if err != nil {
			return fmt.Errorf("step %d by itself: %w", i, err)
		}
		if w.Result != nil && res != nil && in.unsoundStep(topo, before, pod, step.Container, step.Affinity, *w.Result, after) != "" {
			if err := in.holdsStep(topo, before, pod, step.Container, step.Affinity, *res, state, false); err != nil {
				return fmt.Errorf("step %d by itself: %w", i, err)
			}
			continue
		}
		diff := ""
		if w.Result != nil && res != nil {
			diff = res.differs(*w.Result)
		}
		if diff = cmp.Or(diff, state.differs(after)); diff != "" {
			return fmt.Errorf("step %d by itself: %s: %s %s", i, diff, render(res), render(state))
		}
	}
	return nil
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
