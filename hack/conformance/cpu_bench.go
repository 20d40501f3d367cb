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
	Given    *cpuset.Set `json:"reserved_cpus_given"`
	Reserved cpuset.Set  `json:"reserved_cpus"`
}

// cpuBench is a manager and an empty ledger on a machine.
type cpuBench struct {
	*cpu.Manager
	machine *machine.Topology
	base    *ledger.View
}

func (s cpuSetup) bench(env *Env) (*cpuBench, error) {
	topo, cfg := env.machine(s.Topology), s.config("")
	cfg.AsKubelet = env.asKubelet
	m, err := cpu.New(cfg, topo)
	if err != nil {
		return nil, err
	}
	if m.Reserved() != s.Reserved {
		if !s.overwritten(env.Reference, topo, m.Reserved(), s.Reserved) {
			return nil, fmt.Errorf("reserved CPUs: expected %q, got %q", s.Reserved, m.Reserved())
		}
		env.listed, cfg.ReservedCPUs = overwrites, s.Reserved
		if m, err = cpu.New(cfg, topo); err != nil {
			return nil, err
		}
	}
	return newCPUBench(m, topo), nil
}

// overwritten reports whether two things hold. The recorded reserved CPUs follow from the
// reference's overwritten nodes, and the manager's follow from correct nodes.
func (s cpuSetup) overwritten(v version, topo *machine.Topology, mine, recorded cpuset.Set) bool {
	return s.misreserved(v, topo, recorded) && s.spreads(topo, topo.CPUs(), cpuset.Set{}, mine, s.NumReserved, s.rule(newest, false)) == nil
}

// misreserved reports, from the recording alone, whether the reserved CPUs were chosen with
// overwritten nodes.
func (s cpuSetup) misreserved(v version, topo *machine.Topology, recorded cpuset.Set) bool {
	return s.Given == nil && s.Options[cpu.DistributeAcrossNUMA] == "true" &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, s.rule(v, true)) == nil &&
		s.spreads(topo, topo.CPUs(), cpuset.Set{}, recorded, s.NumReserved, s.rule(v, false)) != nil
}

func newCPUBench(m *cpu.Manager, topo *machine.Topology) *cpuBench {
	rules := ledger.Rules{Machine: topo, ReservedCPUs: m.Reserved(), StrictReservation: m.StrictReservation()}
	return &cpuBench{Manager: m, machine: topo, base: ledger.Empty(rules)}
}

// config is the manager's configuration. The recordings call the static policy
// below the kubelet's check that something is reserved.
func (s cpuSetup) config(topologyPolicy string) cpu.Config {
	cfg := cpu.Config{
		Policy:           cpu.PolicyStatic,
		Options:          s.Options,
		ReservedMilliCPU: int64(s.NumReserved) * 1000,
		AllowUnreserved:  s.NumReserved == 0,
		TopologyPolicy:   topologyPolicy,
		Features:         cpuFeatures(s.Gates),
	}
	if s.Given != nil {
		cfg.ReservedCPUs = *s.Given
	}
	return cfg
}

func cpuFeatures(g vector.Gates) cpu.Features {
	return cpu.Features{
		AlphaOptions: g.On(vector.CPUManagerPolicyAlphaOptions),
		BetaOptions:  g.On(vector.CPUManagerPolicyBetaOptions),
		Features:     g.Features(),
	}
}

// cpuState is a recorded state. Reusable holds CPUs of a pod's finished init
// containers that its next container may take.
type cpuState struct {
	Default        cpuset.Set  `json:"default"`
	Assignments    assignments `json:"assignments"`
	PodAssignments cpuSets     `json:"pod_assignments"`
	Reusable       cpuSets     `json:"reusable"`
}

// assignments are sets of CPUs by pod and container; cpuSets by either.
type (
	assignments = map[string]cpuSets
	cpuSets     = map[string]cpuset.Set
)

// spent holds CPUs of init containers that can no longer be reused.
const spent = "spent"

// view returns the state as a view. next is the container about to be planned.
//
// In berth the reusable resources follow from the claims of a pod's containers. The reference
// stores them. It deletes them when another pod gets CPUs, or when a single container is removed,
// which berth never does. If in the state CPUs of an init container cannot be reused, the
// view assigns them to another pod.
func (b *cpuBench) view(s cpuState, pod *workload.Pod, next string) *ledger.View {
	records := seeded(pod)
	b.seed(records, s, pod.UID)
	if _, holds := s.Assignments[pod.UID][next]; next != "" && !holds {
		spend(records, pod, reusableBefore(records[pod.UID], next).Minus(s.Reusable[pod.UID]))
	}
	return records.on(b.base)
}

// seed adds the claims of a state. After giving a CPU to two owners, the reference counts it in
// the shared pool although another pod holds it. Such a CPU is in the pool here. A CPU that is in
// neither has no owner.
func (b *cpuBench) seed(records seed, s cpuState, atHand string) {
	known := s.Default
	if b.StrictReservation() {
		known = known.Union(b.Reserved())
	}
	add := func(uid, container string, set cpuset.Set, use ledger.CPUUse) {
		known = known.Union(set)
		if uid != atHand {
			set = set.Minus(s.Default)
		}
		records.hold(uid, container, cpuClaim(set, use))
	}
	for uid, set := range s.PodAssignments {
		add(uid, "", set, ledger.CPUPod)
	}
	for uid, containers := range s.Assignments {
		use := ledger.CPUExclusive
		if !s.PodAssignments[uid].IsEmpty() {
			use = ledger.CPUPodExclusive
		}
		for name, set := range containers {
			add(uid, name, set, use)
		}
	}
	if missing := b.machine.CPUs().Minus(known); !missing.IsEmpty() {
		records.hold(nobody, "c0", cpuClaim(missing, ledger.CPUExclusive))
	}
}

func cpuClaim(set cpuset.Set, use ledger.CPUUse) ledger.Claim {
	return ledger.Claim{Provider: cpu.Name, Resource: cpu.Resource, CPUs: &ledger.CPUs{Set: set, Use: use}}
}

// reusableBefore is what follows from a record for its next container.
func reusableBefore(r *ledger.Pod, next string) cpuset.Set {
	held := func(at int) cpuset.Set {
		if claim, ok := r.Claim(r.Pod.Containers[at].Name, cpu.Resource); ok {
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
func (s cpuState) without(uid, container string) cpuState {
	out := s.clone()
	freed := out.Assignments[uid][container]
	delete(out.Assignments[uid], container)
	if len(out.Assignments[uid]) == 0 {
		freed = freed.Union(out.PodAssignments[uid])
		delete(out.Assignments, uid)
		delete(out.PodAssignments, uid)
	}
	out.Default = s.Default.Union(freed)
	return out
}

// with returns the state after claims were added, which led to a view.
func (s cpuState) with(view *ledger.View, claims []ledger.Claim) cpuState {
	out := s.clone()
	out.Default, out.Reusable = view.SharedCPUs(), nil
	for _, c := range claims {
		out.add(c)
	}
	return out
}

// clone copies the state; its maps are not nil.
func (s cpuState) clone() cpuState {
	out := cpuState{Default: s.Default, Assignments: assignments{}, PodAssignments: cpuSets{}, Reusable: s.Reusable}
	maps.Copy(out.PodAssignments, s.PodAssignments)
	for uid, containers := range s.Assignments {
		out.Assignments[uid] = maps.Clone(containers)
	}
	return out
}

func (s cpuState) add(c ledger.Claim) {
	if c.Owner.Container == "" {
		s.PodAssignments[c.Owner.Pod] = c.CPUs.Set
		return
	}
	put(s.Assignments, c.Owner.Pod, c.Owner.Container, c.CPUs.Set)
}

// put writes an element of a map of maps.
func put[K, L comparable, V any, M ~map[L]V](m map[K]M, k K, l L, v V) {
	if m[k] == nil {
		m[k] = M{}
	}
	m[k][l] = v
}

// differs compares with a recorded state. The reusable CPUs follow from the rest.
func (s cpuState) differs(want cpuState) string {
	switch {
	case s.Default != want.Default:
		return "shared pool"
	case !maps.Equal(s.PodAssignments, want.PodAssignments):
		return "pod assignments"
	case !maps.EqualFunc(s.Assignments, want.Assignments, maps.Equal[cpuSets, cpuSets]):
		return "assignments"
	}
	return ""
}
