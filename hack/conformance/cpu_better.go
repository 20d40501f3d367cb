package main

import (
	"errors"
	"fmt"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// The entries of docs/deviations.md for choices of CPUs that are better than the kubelet's.
const (
	shrunk    = "C19" // the distribution uses fewer nodes than the merge
	siblings  = "C20" // threads of one core are taken while other cores are free
	scattered = "C21" // more caches are used than needed
)

// betterEntry is the entry of the option that a better choice follows from.
func (s cpuSetup) betterEntry() (string, error) {
	for _, row := range []struct{ option, entry string }{
		{cpu.DistributeAcrossNUMA, shrunk}, {cpu.DistributeAcrossCores, siblings}, {cpu.PreferUncores, scattered},
	} {
		if s.Options[row.option] == "true" {
			return row.entry, nil
		}
	}
	return "", errors.New("no option is set with which berth chooses better")
}

// choicePair is a choice of CPUs by the kubelet and by berth, from the same free CPUs.
type choicePair struct {
	topo       *machine.Topology
	home       cpuset.Set
	want, got  cpuset.Set
	mergeNodes int
}

// check returns why berth's choice is not better by the rule of an entry. CPUs of the affinity are chosen
// before others, so each part is compared by itself.
func (c choicePair) check(entry string) error {
	if c.want == c.got {
		return nil
	}
	for _, part := range []struct{ want, got cpuset.Set }{
		{c.want.Intersect(c.home), c.got.Intersect(c.home)},
		{c.want.Minus(c.home), c.got.Minus(c.home)},
	} {
		if part.want == part.got {
			continue
		}
		switch cores, caches, nodes := c.topo.ByCore(), c.topo.ByUncore(), c.topo.ByNode(); entry {
		case siblings:
			if touched(cores, part.got) < touched(cores, part.want) {
				return fmt.Errorf("CPUs %s are of fewer cores than CPUs %s", part.got, part.want)
			}
		case scattered:
			if touched(caches, part.got) >= touched(caches, part.want) {
				return fmt.Errorf("CPUs %s are of as many caches as CPUs %s", part.got, part.want)
			}
			return nil // the second part may be chosen from others
		case shrunk:
			if n := touched(nodes, part.got); n < touched(nodes, part.want) || n > c.mergeNodes {
				return fmt.Errorf("CPUs %s are of %d nodes, the merge has %d", part.got, n, c.mergeNodes)
			}
			return nil
		}
	}
	return nil
}

// touched is the number of units that have CPUs of a set.
func touched(units *machine.Partition, set cpuset.Set) (n int) {
	for range units.Touched(set) {
		n++
	}
	return n
}

// cpuAllocateBetter checks a choice of CPUs that is better than the recorded one.
func cpuAllocateBetter(env *Env, in cpuAllocateIn, want, got cpuAllocated) (string, error) {
	entry, err := in.betterEntry()
	if err != nil {
		return "", err
	}
	choice, topo := in.choice(env), env.machine(in.Topology)
	same := got.Result.OK == want.Result.OK && got.Result.sameError(want.Result)
	if !choice.whole || choice.podCPUs.IsEmpty() {
		if err := choice.check(got.Result, got.After, same); err != nil {
			return "", err
		}
	}
	pair := choicePair{topo, choice.home, want.Result.CPUSet, got.Result.CPUSet, in.Affinity.NUMA.Len()}
	if !choice.whole || pair.want != pair.got {
		if beyond := overlapping(in.Pod.Pod, pair.got, got.After.Assignments[in.Pod.UID]); choice.whole && !beyond.IsEmpty() {
			return "", fmt.Errorf("containers have CPUs %s that are not their pod's, or another's", beyond)
		}
		return entry, pair.check(entry)
	}
	return entry, in.betterParts(pair, entry, want.After, got.After)
}

// betterParts compares the parts of the containers of a pod that has its CPUs as a whole, up to the first that
// differs: the later ones are chosen from other CPUs.
func (in cpuAllocateIn) betterParts(pod choicePair, entry string, want, got cpuState) error {
	uid := in.Pod.UID
	if beyond := overlapping(in.Pod.Pod, pod.got, got.Assignments[uid]); !beyond.IsEmpty() {
		return fmt.Errorf("containers have CPUs %s that are not their pod's, or another's", beyond)
	}
	for _, c := range in.Pod.Walk() {
		pair := choicePair{topo: pod.topo, want: want.Assignments[uid][c.Name], got: got.Assignments[uid][c.Name],
			mergeNodes: pod.mergeNodes}
		n := int(c.Requests[workload.CPU] / 1000)
		switch {
		case pair.want == pair.got:
			continue
		case exclusive(c) && pair.got.Len() != n:
			return fmt.Errorf("container %s has CPUs %s, and requested %d", c.Name, pair.got, n)
		}
		return pair.check(entry)
	}
	return nil
}

// podAdmitBetter checks a history with a decision that is better than the kubelet's. After it the pods that follow
// find other resources free, so only the invariants are compared.
func podAdmitBetter(_ *Env, in podAdmitIn, _, got []podStepGot) (string, error) {
	for i, g := range got {
		if g.Left+g.Wrong != "" {
			return "", fmt.Errorf("step %d: a rejected pod leaves %s, an admitted one holds %s", i, g.Left, g.Wrong)
		}
	}
	entry, err := cpuSetup{Options: in.CPUOptions}.betterEntry()
	if err != nil && in.TopologyScope == "pod" {
		for _, p := range in.Pods {
			if requestedEarlier(p.Pod) != "" {
				return earlierOnly, nil
			}
		}
	}
	return entry, err
}
