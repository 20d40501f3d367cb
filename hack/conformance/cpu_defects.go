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
	torn       = "C3" // CPUs that are not free are taken with their core
	takenTwice = "C4" // a pod gets a second set of CPUs
	overwrites = "C5" // the chosen nodes are overwritten
	hangs      = "C6" // the remainder is handed out for ever
)

// cpuPool is what one operation may take from.
type cpuPool struct {
	shared, reserved, reusable, held cpuset.Set
}

func (s cpuSetup) pool(state cpuState, uid, container string) (cpuPool, error) {
	var sets [4]cpuset.Set
	for i, list := range []string{state.Default, s.Reserved, state.Reusable[uid], state.Assignments[uid][container]} {
		var err error
		if sets[i], err = cpuset.Parse(list); err != nil {
			return cpuPool{}, err
		}
	}
	return cpuPool{sets[0], sets[1], sets[2], sets[3]}, nil
}

// free is what the operation may choose from.
func (p cpuPool) free() cpuset.Set { return p.shared.Minus(p.reserved).Union(p.reusable) }

// strict tells whether the reserved CPUs are kept out of the shared pool.
func (s cpuSetup) strict() bool { return s.Options[cpu.StrictReservation] == "true" }

// unsoundStep says why a recorded operation on a recorded state cannot be right.
func (s cpuSetup) unsoundStep(before cpuState, uid, container string, res cpuResult) string {
	p, err := s.pool(before, uid, container)
	if err != nil {
		return err.Error()
	}
	if both := p.shared.Intersect(p.reserved); s.strict() && !both.IsEmpty() {
		return fmt.Sprintf("reserved CPUs %s are in the shared pool", both)
	}
	if container == "" && before.PodAssignments[uid] != "" {
		return "the pod has its CPUs already"
	}
	taken, err := cpuset.Parse(res.CPUSet)
	if err != nil {
		return err.Error()
	}
	if stolen := taken.Minus(p.free()).Minus(p.held); res.OK && !stolen.IsEmpty() {
		return fmt.Sprintf("CPUs %s are taken and were not free", stolen)
	}
	return ""
}

func cpuAllocateUnsound(_ *Env, in cpuAllocateIn, want cpuAllocateWant) string {
	return in.unsoundStep(in.Before, in.Pod.UID, in.Container, want.Result)
}

// cpuAllocateDiffers checks what must hold whatever the reference answered.
func cpuAllocateDiffers(env *Env, in cpuAllocateIn, want cpuAllocateWant, got cpuAllocateGot) (string, error) {
	if had := in.Before.PodAssignments[in.Pod.UID]; in.Op == "allocate_pod" && had != "" {
		if got.Result.CPUSet != had || got.After.Default != in.Before.Default {
			return "", fmt.Errorf("the pod held %q and now holds %q", had, got.Result.CPUSet)
		}
		return takenTwice, nil
	}
	topo, err := env.Machines.Get(in.Topology)
	if err != nil {
		return "", err
	}
	pod, err := in.Pod.Pod()
	if err != nil {
		return "", err
	}
	if err := in.holdsStep(topo, in.Before, pod, in.Container, in.Affinity, got.Result, got.After); err != nil {
		return "", err
	}
	switch {
	case slices.Contains(want.Quirks, "slice_aliasing"):
		return overwrites, nil
	case want.Result.Error != nil && want.Result.Error.Class == "hang":
		return hangs, nil
	}
	return torn, nil
}

// holdsStep checks an operation against the rules: a refusal only where there is
// too little; as many CPUs as asked for, all of them free before, as many as
// possible where the affinity wants them; nothing else in the pool changed.
func (s cpuSetup) holdsStep(topo *machine.Topology, before cpuState, pod *workload.Pod, container string,
	affinity vector.Affinity, res cpuResult, after cpuState,
) error {
	p, err := s.pool(before, pod.UID, container)
	if err != nil {
		return err
	}
	taken, err := cpuset.Parse(res.CPUSet)
	if err != nil {
		return err
	}
	wish, err := affinity.Hint()
	if err != nil {
		return err
	}
	home := topo.CPUsInNodes(wish.Nodes)
	if s.Options[cpu.AlignBySocket] == "true" {
		home = topo.BySocket().Cover(home)
	}
	pool := p.shared.Minus(taken)
	if s.strict() {
		pool = pool.Minus(p.reserved)
	}
	n := asked(pod, container)
	switch {
	case !p.held.IsEmpty():
		if taken != p.held {
			return fmt.Errorf("held %s, and now %s", p.held, taken)
		}
	case !res.OK && (p.free().Len() >= n || !taken.IsEmpty()):
		return fmt.Errorf("refused, with %d CPUs free of %d", p.free().Len(), n)
	case !res.OK:
	case taken.Len() != n:
		return fmt.Errorf("%d CPUs instead of %d", taken.Len(), n)
	case !taken.IsSubsetOf(p.free()):
		return fmt.Errorf("CPUs %s were not free", taken.Minus(p.free()))
	case !wish.Any && taken.IntersectLen(home) != min(n, p.free().IntersectLen(home)):
		return errors.New("the affinity is not followed")
	}
	if after.Default != pool.String() {
		return fmt.Errorf("the shared pool is %q and should be %q", after.Default, pool)
	}
	return nil
}

// asked is the number of CPUs that an operation is about.
func asked(pod *workload.Pod, container string) int {
	if container == "" {
		return int(pod.Resources.Requests[workload.CPU] / 1000)
	}
	return int(pod.Container(container).Requests[workload.CPU] / 1000)
}

// unsoundAt finds the first recorded step that cannot be right; -1 if all can.
func (in cpuSequencesIn) unsoundAt(want cpuSequencesWant) (step int, why string) {
	before := in.Initial
	for i, w := range want.Steps {
		if w.Result != nil {
			if why := in.unsoundStep(before, in.Steps[i].Pod, in.Steps[i].Container, *w.Result); why != "" {
				return i, why
			}
		}
		before = w.State
	}
	return -1, ""
}

func cpuSequencesUnsound(_ *Env, in cpuSequencesIn, want cpuSequencesWant) string {
	_, why := in.unsoundAt(want)
	return why
}

// cpuSequencesDiffer checks that berth agrees with the recording up to the step
// at which that goes wrong, and keeps the rules from there on.
func cpuSequencesDiffer(env *Env, in cpuSequencesIn, want cpuSequencesWant, got []cpuStepGot) (string, error) {
	wrong, _ := in.unsoundAt(want)
	if wrong < 0 {
		return "", errors.New("the recording is sound")
	}
	if diff := compareCPUSequences(in, cpuSequencesWant{want.Steps[:wrong]}, got); diff != "" {
		return "", errors.New(diff)
	}
	topo, err := env.Machines.Get(in.Topology)
	if err != nil {
		return "", err
	}
	before := in.Initial
	for i, step := range in.Steps {
		if i >= wrong && step.Op == "allocate" && got[i].Result.Allocated {
			pod, err := in.Pods[step.Pod].Pod()
			if err != nil {
				return "", err
			}
			if err := in.holdsStep(topo, before, pod, step.Container, step.Affinity, *got[i].Result, got[i].State); err != nil {
				return "", fmt.Errorf("step %d: %w", i, err)
			}
		}
		before = got[i].State
	}
	return torn, nil
}
