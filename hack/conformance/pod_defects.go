package main

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// Entries of docs/deviations.md in recordings of whole pods, in addition to those of the CPU
// manager.
const (
	overdrawn   = "A5"  // containers get more than their pod
	deviceless  = "D10" // a pod is decided about without its devices
	emptied     = "C7"  // the last shared CPUs are given away
	miscounted  = "N5"  // memory is freed where it was not counted
	wrapsAround = "N10" // huge pages below zero
)

// The entries for decisions about whole pods that have changed since 1.36.
const (
	emptyResources = "U3" // pod-level resources without any amount make a pod BestEffort
	initUnlimited  = "U4" // the limits of sidecars count as those of later init containers
	memoryless     = "U5" // a container without a memory request is refused
)

// podDefect is the reason why a recorded step cannot be right, given the recorded state before
// it, and the entry that describes it.
type podDefect struct{ entry, why string }

// defects judges every recorded step; an empty entry if it can be right.
func (in podAdmitIn) defects(env *Env, want podAdmitWant) []podDefect {
	out := make([]podDefect, len(want.Steps))
	var before podStepWant
	counted := map[string]map[int]resourceBytes{}
	here := map[string]podStepWant{} // steps that admitted the pods that are here
	for i, w := range want.Steps {
		pod := in.Pods[in.Steps[i].Pod].Pod
		var d podDefect
		if in.Steps[i].Op == "admit" {
			counted[pod.UID] = taken(before.Memory, w.Memory)
			d = in.deviceless(pod, here)
			if w.Result.Admit {
				here[pod.UID] = w
			}
		} else if delete(here, pod.UID); i > 0 && !maps.EqualFunc(counted[pod.UID], taken(w.Memory, before.Memory),
			maps.Equal[resourceBytes, resourceBytes]) {
			d = podDefect{miscounted, "memory is freed on other nodes than it was taken from"}
		}
		if env.Reference < newest && in.Steps[i].Op == "admit" {
			d = cmp.Or(in.outdated(pod, w), d)
		}
		out[i] = cmp.Or(d, in.unsound(pod, before, w, i == 0), in.uneven(env, pod, w), in.emptied(here, w.CPU))
		before = w
	}
	return out
}

// outdated judges an admission that kubelets since 1.37 decide in another way.
func (in podAdmitIn) outdated(pod *workload.Pod, w podStepWant) podDefect {
	switch {
	case pod.Resources != nil && !pod.HasPodLevel():
		return podDefect{emptyResources, "the pod counts as BestEffort"}
	case strings.Contains(w.Result.Message, "[memorymanager]") && pod.HasPodLevel() &&
		(in.TopologyScope != "pod" || in.TopologyPolicy == "none") &&
		slices.ContainsFunc(pod.Containers, func(c workload.Container) bool { return !c.Guaranteed() }):
		return podDefect{memoryless, "the memory manager may have refused a container without memory of its own"}
	}
	return podDefect{}
}

// firstDefect returns the first recorded step that cannot be right; -1 if there is none.
func firstDefect(defects []podDefect) int {
	return slices.IndexFunc(defects, func(d podDefect) bool { return d != podDefect{} })
}

// taken is what the tables count more in one state than in another, by node.
func taken(before, after memoryState) map[int]resourceBytes {
	out := map[int]resourceBytes{}
	for id, node := range after.Nodes {
		more := resourceBytes{}
		for name, t := range node.Memory {
			if n := t.Reserved - before.Nodes[id].Memory[name].Reserved; n != 0 {
				more[name] = n
			}
		}
		if len(more) > 0 {
			out[id] = more
		}
	}
	return out
}

// unsound returns why a recorded state after a step cannot be right. Defects of the state before
// the step are not repeated.
func (in podAdmitIn) unsound(p *workload.Pod, before, w podStepWant, first bool) podDefect {
	if kept := w.CPU.PodAssignments[p.UID]; !kept.IsEmpty() && len(w.CPU.Assignments[p.UID]) == 0 && (w.Result == nil || !w.Result.Admit) {
		return podDefect{keeps, fmt.Sprintf("the pod is refused or removed and keeps CPUs %s", kept)}
	}
	if twice := in.twice(p, w.CPU); !twice.IsEmpty() {
		return podDefect{torn, fmt.Sprintf("CPUs %s are in two places", twice)}
	}
	stolen := in.stolen(p, w.CPU)
	if !first && before.CPU.held(p.UID).IsEmpty() {
		stolen = stolen.Union(w.CPU.held(p.UID).Minus(before.CPU.Default))
	}
	if !stolen.IsEmpty() {
		return podDefect{torn, fmt.Sprintf("CPUs %s are taken and were not free", stolen)}
	}
	for _, c := range p.Walk() {
		if n := int(c.Requests[workload.CPU] / 1000); exclusive(c) {
			if has := w.CPU.Assignments[p.UID][c.Name].Len(); has > 0 && has < n {
				return podDefect{doubled, fmt.Sprintf("%s has %d CPUs instead of %d", c.Name, has, n)}
			}
		}
	}
	for id, node := range w.Memory.Nodes {
		for _, other := range node.Cells {
			if w.Memory.lopsided(id, other) && !before.Memory.lopsided(id, other) {
				return podDefect{miscounted, fmt.Sprintf("node %d is in the group of node %d, but not the other way round", other, id)}
			}
		}
	}
	if d := w.Memory.beyondPod(p.UID); d.entry != "" {
		return d
	}
	if w.Result != nil && w.Result.Admit {
		for _, c := range p.Containers {
			for name, n := range c.Requests {
				if _, plugin := in.Devices[string(name)]; plugin && int64(len(w.Devices[c.Name][string(name)])) != n {
					return podDefect{deviceless, fmt.Sprintf("%s is admitted without %d of %s", c.Name, n, name)}
				}
			}
		}
	}
	return podDefect{}
}

// beyondPod finds a block of a container that is negative, or more than its pod has as a whole.
func (s memoryState) beyondPod(uid string) podDefect {
	whole := s.PodAssignments[uid]
	for name, blocks := range s.Assignments[uid] {
		for _, b := range blocks {
			at := slices.IndexFunc(whole, func(of memoryBlock) bool { return of.Type == b.Type })
			switch {
			case b.Size > wrapped:
				return podDefect{wrapsAround, fmt.Sprintf("%s holds %d bytes of %s", name, b.Size, b.Type)}
			case at < 0 && b.Size > 0 && len(whole) > 0:
				return podDefect{wrapsAround, fmt.Sprintf("%s holds %d bytes of %s, and its pod none", name, b.Size, b.Type)}
			case at >= 0 && b.Size > whole[at].Size:
				return podDefect{overdrawn, fmt.Sprintf("%s holds %d bytes of %s, its pod %d", name, b.Size, b.Type, whole[at].Size)}
			}
		}
	}
	return podDefect{}
}

// lopsided reports whether a node is in the group of another, but not the other way
// round.
func (s memoryState) lopsided(id, other int) bool {
	return slices.Contains(s.Nodes[id].Cells, other) && !slices.Contains(s.Nodes[other].Cells, id)
}

// held are the CPUs of a pod and its containers.
func (s cpuState) held(uid string) cpuset.Set {
	held := s.PodAssignments[uid]
	for _, set := range s.Assignments[uid] {
		held = held.Union(set)
	}
	return held
}

// twice returns CPUs with two owners: CPUs of the pod that the shared pool has too, or, in a pod
// without its own set, CPUs of several containers that run together.
func (in podAdmitIn) twice(p *workload.Pod, s cpuState) (twice cpuset.Set) {
	var together cpuset.Set
	for _, c := range p.Walk() {
		if s.PodAssignments[p.UID].IsEmpty() && !c.Role.Feeds() {
			set := s.Assignments[p.UID][c.Name]
			twice, together = twice.Union(together.Intersect(set)), together.Union(set)
		}
	}
	return twice.Union(s.held(p.UID).Intersect(s.Default))
}

// uneven detects the reference's defects on machines with cores or sockets of different sizes or
// without nesting. The reference uses the average size. It then takes whole units with CPUs far
// from the affinity, or counts CPUs before a refusal that were not free or counted twice.
func (in podAdmitIn) uneven(env *Env, p *workload.Pod, w podStepWant) podDefect {
	m, entry := env.machine(in.Topology), torn
	if crossing(m) {
		entry = doubled
	}
	if w.Result == nil || entry == torn && alike(m.ByCore()) && alike(m.BySocket()) {
		return podDefect{}
	}
	if strings.Contains(w.Result.Message, "not enough cpus available") {
		return podDefect{entry, "the CPUs that were counted before the refusal may not have been free"}
	}
	sets := w.CPU.Assignments[p.UID]
	free := w.CPU.Default
	for _, set := range sets {
		free = free.Union(set)
	}
	free = free.Minus(in.ReservedCPUs)
	for _, c := range p.Walk() {
		set, wish := sets[c.Name], w.Affinity[c.Name]
		home := cpuSetup{Options: in.CPUOptions}.home(m, wish)
		if far := set.Minus(home); wish.NUMA.Named && !far.IsEmpty() && !free.Intersect(home).IsSubsetOf(set) {
			return podDefect{entry, fmt.Sprintf("%s has CPUs %s, and others were nearer", c.Name, far)}
		}
		if !c.Role.Feeds() {
			free = free.Minus(set)
		}
	}
	return podDefect{}
}

// alike reports whether all units have the same size.
func alike(units *machine.Partition) bool {
	for i := range units.Len() {
		if units.Size(i) != units.Size(0) {
			return false
		}
	}
	return true
}

// stolen returns CPUs that a container got although they were not free: reserved CPUs, or CPUs of
// a container that runs at the same time.
func (in podAdmitIn) stolen(p *workload.Pod, s cpuState) (stolen cpuset.Set) {
	sets, reserved := s.Assignments[p.UID], in.ReservedCPUs
	if podCPUs, whole := s.PodAssignments[p.UID]; whole {
		return podCPUs.Intersect(reserved).Union(overlapping(p, podCPUs, sets))
	}
	var gone, reusable cpuset.Set
	for _, c := range p.Walk() {
		set := sets[c.Name]
		stolen = stolen.Union(set.Intersect(reserved.Union(gone.Minus(reusable))))
		gone = gone.Union(set)
		if c.Role.Feeds() {
			reusable = reusable.Union(set)
		} else {
			reusable = reusable.Minus(set)
		}
	}
	return stolen
}

// overlapping returns CPUs of containers that are outside of their pod's set, or exclusive to two
// of them at the same time.
func overlapping(p *workload.Pod, podCPUs cpuset.Set, sets cpuSets) (bad cpuset.Set) {
	var owned cpuset.Set
	for _, c := range p.Walk() {
		set := sets[c.Name]
		bad = bad.Union(set.Minus(podCPUs))
		if !c.Role.Feeds() && exclusive(c) {
			bad = bad.Union(set.Intersect(owned))
			owned = owned.Union(set)
		}
	}
	return bad
}

// exclusive reports whether a container requests CPUs of its own; in a pod without
// resources of its own it needs no more than that.
func exclusive(c *workload.Container) bool {
	n := c.Requests[workload.CPU]
	return c.Guaranteed() && n > 0 && n%1000 == 0
}

// emptied finds a container that needs shared CPUs although there are none.
func (in podAdmitIn) emptied(here map[string]podStepWant, s cpuState) podDefect {
	for uid := range here {
		for _, c := range in.Pods[uid].Walk() {
			if s.Default.IsEmpty() && s.Assignments[uid][c.Name].IsEmpty() {
				return podDefect{emptied, fmt.Sprintf("%s/%s runs on shared CPUs, and there are none", uid, c.Name)}
			}
		}
	}
	return podDefect{}
}

// deviceless names devices that a pod cannot get although the reference has admitted it. The
// reference decides about such a pod as a whole without its devices.
func (in podAdmitIn) deviceless(p *workload.Pod, here map[string]podStepWant) podDefect {
	if in.TopologyScope != "pod" || in.TopologyPolicy == "none" ||
		!in.Gates.On(vector.PodLevelResourceManagers) || !p.HasPodLevel() {
		return podDefect{}
	}
	for name, devices := range in.Devices {
		var free int64
		for _, d := range devices {
			if d.Healthy {
				free++
			}
		}
		for _, w := range here {
			held := map[string]bool{}
			for _, c := range w.Devices {
				for _, id := range c[name] {
					held[id] = true
				}
			}
			free -= int64(len(held))
		}
		if n := workload.PodTotal(p, func(c *workload.Container) int64 { return c.Limits[workload.Resource(name)] }); n > free {
			return podDefect{deviceless, fmt.Sprintf("%d of %s are requested, and %d are free", n, name, free)}
		}
	}
	return podDefect{}
}

func podAdmitUnsound(env *Env, in podAdmitIn, want podAdmitWant) string {
	defects := in.defects(env, want)
	if wrong := firstDefect(defects); wrong >= 0 {
		return defects[wrong].why
	}
	return ""
}

// podAdmitDiffers checks that berth agrees with the recording before its first wrong step. From
// there on, rejected pods leave nothing, and admitted pods hold their requests. Every step that
// was recorded correctly is also decided by itself. Double owners were checked at every step.
func podAdmitDiffers(env *Env, in podAdmitIn, want podAdmitWant, got []podStepGot) (string, error) {
	defects := in.defects(env, want)
	wrong := firstDefect(defects)
	if wrong < 0 {
		return "", errors.New("the recording is sound")
	}
	if diff := comparePodAdmit(in, podAdmitWant{want.Steps[:wrong]}, got); diff != "" {
		return "", errors.New(diff)
	}
	for i, g := range got[wrong:] {
		if g.Left+g.Wrong != "" {
			return "", fmt.Errorf("step %d: a rejected pod leaves %q, an admitted one holds %q", wrong+i, g.Left, g.Wrong)
		}
	}
	if _, err := in.stepByStep(env, want, defects, wrong); err != nil {
		return "", err
	}
	return defects[wrong].entry, nil
}

// amiss describes claims of an admitted pod that differ from its requests.
func amiss(p *ledger.Pod) string {
	for i := range p.Claims {
		c := &p.Claims[i]
		asked := p.Pod.Resources
		if container := p.Pod.Container(c.Owner.Container); container != nil {
			asked = &workload.Resources{Requests: container.Requests}
		}
		n := asked.Requests[workload.Resource(c.Resource)]
		var has int64
		switch {
		case c.CPUs != nil && c.CPUs.Use == ledger.CPUPodShared:
			continue
		case c.CPUs != nil:
			has = int64(c.CPUs.Set.Len()) * 1000
		case c.Devices != nil:
			has = int64(len(c.Devices.Devices))
		default:
			continue
		}
		if has != n {
			return fmt.Sprintf("%d of %s instead of %d", has, c.Resource, n)
		}
	}
	return ""
}
