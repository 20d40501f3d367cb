package main

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
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
	b, err := newCPUBench(m, topo)
	if err != nil {
		return nil, err
	}
	b.chose = chose
	return b, nil
}

// overwritten tells whether the recorded choice of reserved CPUs is the one that the
// reference's overwriting of the chosen nodes leads to, and the manager's the one
// that it should have led to.
func (s cpuSetup) overwritten(topo *machine.Topology, mine, recorded cpuset.Set) bool {
	return s.misreserved(topo, recorded) && s.spreads(topo, topo.CPUs(), cpuset.Set{}, mine, s.NumReserved, false) == nil
}

// misreserved tells from the recording alone that reserved CPUs were chosen by
// overwritten nodes.
func (s cpuSetup) misreserved(topo *machine.Topology, recorded cpuset.Set) bool {
	return s.Given == nil && s.Options[cpu.DistributeAcrossNUMA] == "true" &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, true) == nil &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, false) != nil
}

// unlikeReserve says that the reserved CPUs of a case are such a choice.
func (s cpuSetup) unlikeReserve(env *Env) string {
	if topo, err := env.Machines.Get(s.Topology); err == nil && s.misreserved(topo, parsed(s.Reserved)) {
		return fmt.Sprintf("CPUs %s are reserved, of nodes that were overwritten", s.Reserved)
	}
	return ""
}

func newCPUBench(m *cpu.Manager, topo *machine.Topology) (*cpuBench, error) {
	l, _, err := ledger.Open(context.Background(), ledger.Options{
		Journal: ledgertest.NewJournal(),
		Rules:   ledger.Rules{Machine: topo, ReservedCPUs: m.Reserved(), StrictReservation: m.StrictReservation()},
	})
	if err != nil {
		return nil, err
	}
	return &cpuBench{Manager: m, machine: topo, base: l.View()}, nil
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

// Pods that stand for what has no pod in a recorded state.
const (
	// nobody holds the CPUs that are neither in the shared pool nor assigned.
	nobody = "nobody"
	// spent holds CPUs of init containers that nobody may reuse any more.
	spent = "spent"
)

// view returns the state as a view. The pod is in it as it is, others with the
// containers that hold something; next is the container that is to come.
//
// In berth what is reusable follows from what a pod's containers hold. The
// reference remembers it, and forgets it when another pod gets CPUs or when a
// single container is removed, which berth never does. Where the state says that
// CPUs of an init container cannot be reused, the view shows them as held by
// somebody else. And where it counts a CPU that another pod holds to the shared
// pool, as the reference does after giving it out twice, it is in the pool.
func (b *cpuBench) view(s cpuState, pod *workload.Pod, next string) (*ledger.View, error) {
	pool, err := cpuset.Parse(s.Default)
	if err != nil {
		return nil, err
	}
	known := pool
	if b.StrictReservation() {
		known = known.Union(b.Reserved())
	}
	records := map[string]*ledger.Pod{pod.UID: {Pod: *pod}}
	add := func(uid, container, list string, use ledger.CPUUse) error {
		if records[uid] == nil {
			records[uid] = &ledger.Pod{Pod: workload.Pod{UID: uid}}
		}
		set, err := cpuset.Parse(list)
		known = known.Union(set)
		if uid != pod.UID {
			set = set.Minus(pool)
		}
		hold(records[uid], container, set, use)
		return err
	}
	for uid, list := range s.PodAssignments {
		if err := add(uid, "", list, ledger.CPUPod); err != nil {
			return nil, err
		}
	}
	for uid, containers := range s.Assignments {
		use := ledger.CPUExclusive
		if s.PodAssignments[uid] != "" {
			use = ledger.CPUPodExclusive
		}
		for name, list := range containers {
			if err := add(uid, name, list, use); err != nil {
				return nil, err
			}
		}
	}
	if missing := b.machine.CPUs().Minus(known); !missing.IsEmpty() {
		if err := add(nobody, "c0", missing.String(), ledger.CPUExclusive); err != nil {
			return nil, err
		}
	}
	reusable, err := cpuset.Parse(s.Reusable[pod.UID])
	if err != nil {
		return nil, err
	}
	if _, holds := s.Assignments[pod.UID][next]; next != "" && !holds {
		spend(records, pod, reusableBefore(records[pod.UID], next).Minus(reusable))
	}
	draft := ledger.NewDraft(b.base)
	for _, uid := range slices.Sorted(maps.Keys(records)) {
		draft.PutPod(records[uid])
	}
	return draft.View(), nil
}

// hold adds a claim to a record, and the container if the record lacks it.
func hold(r *ledger.Pod, container string, set cpuset.Set, use ledger.CPUUse) {
	r.Claims = append(r.Claims, ledger.Claim{
		Owner:    ledger.Owner{Pod: r.UID(), Container: container},
		Provider: cpu.Name, Resource: cpu.Resource,
		CPUs: &ledger.CPUs{Set: set, Use: use},
	})
	if container != "" && r.Pod.Container(container) == nil {
		r.Pod.Containers = append(r.Pod.Containers, workload.Container{Name: container})
	}
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
func spend(records map[string]*ledger.Pod, pod *workload.Pod, stale cpuset.Set) {
	if stale.IsEmpty() {
		return
	}
	old := records[pod.UID]
	records[pod.UID] = &ledger.Pod{Pod: old.Pod}
	records[spent] = &ledger.Pod{Pod: workload.Pod{UID: spent}}
	for _, claim := range old.Claims {
		set := claim.CPUs.Set
		if c := pod.Container(claim.Owner.Container); c != nil && c.Role.Feeds() && set.Overlaps(stale) {
			hold(records[spent], c.Name, set.Intersect(stale), claim.CPUs.Use)
			set = set.Minus(stale)
		}
		hold(records[pod.UID], claim.Owner.Container, set, claim.CPUs.Use)
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

// differs compares with a recorded state. What is reusable follows from the
// rest.
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
