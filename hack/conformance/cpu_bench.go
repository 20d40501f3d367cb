package main

import (
	"fmt"
	"maps"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// cpuSetup is what all cases of the static CPU policy are set up with.
type cpuSetup struct {
	Gates       vector.Gates      `json:"gates"`
	Topology    string            `json:"topology"`
	Options     map[string]string `json:"policy_options"`
	NumReserved int               `json:"num_reserved"`
	// Given is the explicit list, nil if the policy is to choose; Reserved is
	// the effective set.
	Given    *string `json:"reserved_cpus_given"`
	Reserved string  `json:"reserved_cpus"`
}

// cpuBench is a manager and an empty ledger on a machine.
type cpuBench struct {
	*cpu.Manager
	machine *machine.Topology
	base    *ledger.View
	// chose are the CPUs that the manager would have reserved, if the recorded ones
	// are others and may be.
	chose string
}

func (s cpuSetup) bench(env *Env) (*cpuBench, error) {
	topo, err := env.Machines.Get(s.Topology)
	if err != nil {
		return nil, err
	}
	cfg, err := s.config("")
	if err != nil {
		return nil, err
	}
	m, err := cpu.New(cfg, topo)
	if err != nil {
		return nil, err
	}
	chose := ""
	if m.Reserved().String() != s.Reserved {
		chose = m.Reserved().String()
		if cfg.ReservedCPUs, err = cpuset.Parse(s.Reserved); err != nil {
			return nil, err
		}
		if !s.overwritten(topo, m.Reserved(), cfg.ReservedCPUs) {
			return nil, fmt.Errorf("reserved CPUs: expected %q, got %q", s.Reserved, chose)
		}
		if m, err = cpu.New(cfg, topo); err != nil {
			return nil, err
		}
	}
	b := newCPUBench(m, topo)
	b.chose = chose
	return b, nil
}

// overwritten reports whether two things hold. The recorded reserved CPUs follow from the
// reference's overwritten nodes, and the manager's follow from correct nodes.
func (s cpuSetup) overwritten(topo *machine.Topology, mine, recorded cpuset.Set) bool {
	return s.misreserved(topo, recorded) && s.spreads(topo, topo.CPUs(), cpuset.Set{}, mine, s.NumReserved, false) == nil
}

// misreserved reports, from the recording alone, whether the reserved CPUs were chosen with
// overwritten nodes.
func (s cpuSetup) misreserved(topo *machine.Topology, recorded cpuset.Set) bool {
	return s.Given == nil && s.Options[cpu.DistributeAcrossNUMA] == "true" &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, true) == nil &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, false) != nil
}

// unlikeReserve describes such a choice in a case.
func (s cpuSetup) unlikeReserve(env *Env) string {
	if topo, err := env.Machines.Get(s.Topology); err == nil && s.misreserved(topo, parsed(s.Reserved)) {
		return fmt.Sprintf("CPUs %s are reserved, of nodes that were overwritten", s.Reserved)
	}
	return ""
}

func newCPUBench(m *cpu.Manager, topo *machine.Topology) *cpuBench {
	rules := ledger.Rules{Machine: topo, ReservedCPUs: m.Reserved(), StrictReservation: m.StrictReservation()}
	return &cpuBench{Manager: m, machine: topo, base: ledger.Empty(rules)}
}

// config is the manager's configuration. The recordings call the static policy
// below the kubelet's check that something is reserved.
func (s cpuSetup) config(topologyPolicy string) (cpu.Config, error) {
	cfg := cpu.Config{
		Policy:           cpu.PolicyStatic,
		Options:          s.Options,
		ReservedMilliCPU: int64(s.NumReserved) * 1000,
		AllowUnreserved:  s.NumReserved == 0,
		TopologyPolicy:   topologyPolicy,
		Features:         cpuFeatures(s.Gates),
	}
	if s.Given == nil {
		return cfg, nil
	}
	var err error
	cfg.ReservedCPUs, err = cpuset.Parse(*s.Given)
	return cfg, err
}

func cpuFeatures(g vector.Gates) cpu.Features {
	return cpu.Features{
		AlphaOptions:             g.On(vector.CPUManagerPolicyAlphaOptions),
		BetaOptions:              g.On(vector.CPUManagerPolicyBetaOptions),
		PodLevelResources:        g.On(vector.PodLevelResources),
		PodLevelResourceManagers: g.On(vector.PodLevelResourceManagers),
	}
}

// cpuState is a recorded state. Reusable holds CPUs of a pod's finished init
// containers that its next container may take.
type cpuState struct {
	Default        string      `json:"default"`
	Assignments    assignments `json:"assignments"`
	PodAssignments cpuLists    `json:"pod_assignments"`
	Reusable       cpuLists    `json:"reusable"`
}

// assignments are CPU lists by pod and container; cpuLists by either.
type (
	assignments map[string]cpuLists
	cpuLists    map[string]string
)

// spent holds CPUs of init containers that can no longer be reused.
const spent = "spent"

// view returns the state as a view. next is the container about to be planned.
//
// In berth the reusable resources follow from the claims of a pod's containers. The reference
// stores them. It deletes them when another pod gets CPUs, or when a single container is removed,
// which berth never does. If the state says that CPUs of an init container cannot be reused, the
// view assigns them to another pod.
func (b *cpuBench) view(s cpuState, pod *workload.Pod, next string) (*ledger.View, error) {
	records := seeded(pod)
	if err := b.seed(records, s, pod.UID); err != nil {
		return nil, err
	}
	reusable, err := cpuset.Parse(s.Reusable[pod.UID])
	if err != nil {
		return nil, err
	}
	if _, holds := s.Assignments[pod.UID][next]; next != "" && !holds {
		spend(records, pod, reusableBefore(records[pod.UID], next).Minus(reusable))
	}
	return records.on(b.base), nil
}

// seed adds the claims of a state. After giving a CPU to two owners, the reference counts it in
// the shared pool although another pod holds it. Such a CPU is in the pool here. A CPU that is in
// neither has no owner.
func (b *cpuBench) seed(records seed, s cpuState, atHand string) error {
	pool, err := cpuset.Parse(s.Default)
	if err != nil {
		return err
	}
	known := pool
	if b.StrictReservation() {
		known = known.Union(b.Reserved())
	}
	add := func(uid, container, list string, use ledger.CPUUse) error {
		set, err := cpuset.Parse(list)
		known = known.Union(set)
		if uid != atHand {
			set = set.Minus(pool)
		}
		records.hold(uid, container, cpuClaim(set, use))
		return err
	}
	for uid, list := range s.PodAssignments {
		if err := add(uid, "", list, ledger.CPUPod); err != nil {
			return err
		}
	}
	for uid, containers := range s.Assignments {
		use := ledger.CPUExclusive
		if s.PodAssignments[uid] != "" {
			use = ledger.CPUPodExclusive
		}
		for name, list := range containers {
			if err := add(uid, name, list, use); err != nil {
				return err
			}
		}
	}
	if missing := b.machine.CPUs().Minus(known); !missing.IsEmpty() {
		records.hold(nobody, "c0", cpuClaim(missing, ledger.CPUExclusive))
	}
	return nil
}

func cpuClaim(set cpuset.Set, use ledger.CPUUse) ledger.Claim {
	return ledger.Claim{Provider: cpu.Name, Resource: cpu.Resource, CPUs: &ledger.CPUs{Set: set, Use: use}}
}

// reusableBefore is what follows from a record for its next container.
func reusableBefore(r *ledger.Pod, next string) cpuset.Set {
	held := func(c *workload.Container) cpuset.Set {
		if claim, ok := r.Claim(c.Name, cpu.Resource); ok {
			return claim.CPUs.Set
		}
		return cpuset.Set{}
	}
	return workload.Reusable(&r.Pod, next, held, cpuset.Set.Union, cpuset.Set.Minus)
}

// spend shows CPUs of a pod's init containers as held by another pod.
func spend(records seed, pod *workload.Pod, stale cpuset.Set) {
	if stale.IsEmpty() {
		return
	}
	old := records[pod.UID]
	records[pod.UID] = &ledger.Pod{Pod: old.Pod}
	for _, claim := range old.Claims {
		set := claim.CPUs.Set
		if c := pod.Container(claim.Owner.Container); c != nil && c.Role.Feeds() && set.Overlaps(stale) {
			records.hold(spent, c.Name, cpuClaim(set.Intersect(stale), claim.CPUs.Use))
			set = set.Minus(stale)
		}
		records.hold(pod.UID, claim.Owner.Container, cpuClaim(set, claim.CPUs.Use))
	}
}

// without returns the state after a container was removed, and its pod with the
// last one. The freed CPUs go to the shared pool, which a view derives.
func (s cpuState) without(uid, container string) (cpuState, error) {
	pool, err := cpuset.Parse(s.Default)
	if err != nil {
		return s, err
	}
	out := cpuState{Assignments: assignments{}, PodAssignments: maps.Clone(s.PodAssignments), Reusable: s.Reusable}
	for pod, containers := range s.Assignments {
		out.Assignments[pod] = maps.Clone(containers)
	}
	freed := []string{out.Assignments[uid][container]}
	delete(out.Assignments[uid], container)
	if len(out.Assignments[uid]) == 0 {
		freed = append(freed, out.PodAssignments[uid])
		delete(out.Assignments, uid)
		delete(out.PodAssignments, uid)
	}
	for _, list := range freed {
		set, err := cpuset.Parse(list)
		if err != nil {
			return s, err
		}
		pool = pool.Union(set)
	}
	out.Default = pool.String()
	return out, nil
}

// with returns the state after claims were added, which led to a view.
func (s cpuState) with(view *ledger.View, claims []ledger.Claim) cpuState {
	out := cpuState{Default: view.SharedCPUs().String(), Assignments: assignments{}, PodAssignments: cpuLists{}}
	maps.Copy(out.PodAssignments, s.PodAssignments)
	for uid, containers := range s.Assignments {
		out.Assignments[uid] = maps.Clone(containers)
	}
	for _, c := range claims {
		uid, list := c.Owner.Pod, c.CPUs.Set.String()
		switch {
		case c.Owner.Container == "":
			out.PodAssignments[uid] = list
		case out.Assignments[uid] == nil:
			out.Assignments[uid] = cpuLists{c.Owner.Container: list}
		default:
			out.Assignments[uid][c.Owner.Container] = list
		}
	}
	return out
}

// differs compares with a recorded state. The reusable CPUs follow from the rest.
func (s cpuState) differs(want cpuState) string {
	switch {
	case s.Default != want.Default:
		return "shared pool"
	case !maps.Equal(s.PodAssignments, want.PodAssignments):
		return "pod assignments"
	case !maps.EqualFunc(s.Assignments, want.Assignments, maps.Equal[cpuLists, cpuLists]):
		return "assignments"
	}
	return ""
}
