package cpu

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

var (
	_ hint.Resizer  = (*Manager)(nil)
	_ hint.Replacer = (*Manager)(nil)
)

// Resize returns the claims of the containers whose number of exclusive CPUs changes.
//
// A container that grows keeps its CPUs, except those that the machine no longer has or that are
// offline, and gets the nearest free ones: the other threads of its cores, then its uncore caches, then its NUMA nodes.
// It leaves the nodes of its affinity only if the admission had no preference and the topology policy allows all nodes. A
// container that shrinks first gives back CPUs that the machine no longer has or that are offline, then those that a
// resize has added, and then those that leave it the most whole cores. With full-pcpus-only it keeps whole cores as long
// as it has some.
//
// A container cannot change between exclusive and shared CPUs, and an ordinary init container keeps its
// exclusive CPUs. Without the feature
// ResizeExclusiveCPUs, another request for CPU is refused, in the kubelet's words, for all
// Guaranteed pods under the static policy and all pods with exclusive CPUs.
func (m *Manager) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod, w hint.Widening) ([]ledger.Claim, error) {
	if !workload.RequestsChange(old, wanted, workload.CPU) {
		return nil, nil
	}
	h, had := m.allocation(view, wanted), m.demand(old)
	p, here := view.Pod(old.UID)
	holds := here && p.Holds(Resource)
	if !holds && !(m.policy == PolicyStatic && h.Guaranteed) {
		return nil, nil
	}
	if !m.features.ResizeExclusiveCPUs || m.policy != PolicyStatic {
		return nil, errdefs.Refuse(errdefs.Infeasible, "Resize is infeasible for Guaranteed Pods alongside CPU Manager policy %q",
			PolicyStatic)
	}
	if changed, err := resizes(had, m.demand(wanted)); !changed || err != nil {
		return nil, err
	}
	if h.podCPUs != nil {
		return nil, &hint.OtherNodes{Err: infeasible("pod %s has exclusive CPUs as a whole, and their number cannot change in place",
			p.Pod.String())}
	}
	r := &resize{manager: m, allocation: h, pod: p, bound: w.OneNode || w.Preferred}
	var growing []int
	for i := range wanted.Containers {
		c, before := &wanted.Containers[i], old.Container(wanted.Containers[i].Name)
		from, to := had.of(before), h.of(c)
		switch {
		case from == to:
		case h.claims[i] == nil && to == 0:
		case h.claims[i] == nil:
			return nil, infeasible("container %q shares CPUs, and would get %d exclusive ones: only an admission does this", c.Name, to)
		case to == 0:
			return nil, infeasible("container %q has %d exclusive CPUs, and would share CPUs: only an admission does this", c.Name, from)
		case to < h.claims[i].Set.Len():
			if err := r.shrink(i, to); err != nil {
				return nil, err
			}
		case to > h.claims[i].Set.Len():
			growing = append(growing, i)
		}
	}
	// What other containers of the pod give back is free for these.
	for _, i := range growing {
		if err := r.grow(i, h.of(&wanted.Containers[i])); err != nil {
			return nil, err
		}
	}
	return r.claims, r.empties()
}

// resizes returns whether a pod or its containers get another number of exclusive CPUs, and refuses it for an
// ordinary init container.
func resizes(had, gets demand) (changed bool, err error) {
	changed = had.total() != gets.total()
	for i := range gets.Pod.Containers {
		c := &gets.Pod.Containers[i]
		from, to := had.of(had.Pod.Container(c.Name)), gets.of(c)
		if from != to && c.Role == workload.Init {
			return true, infeasible("container %q is an ordinary init container: its exclusive CPUs, %d and then %d, pass to later containers, so only an admission changes them", c.Name, from, to)
		}
		changed = changed || from != to
	}
	return changed, nil
}

// Replace gives containers other CPUs for those that the machine no longer has or that are offline, by
// the rules of a resize that grows: they keep the others.
func (m *Manager) Replace(_ context.Context, view *ledger.View, pod *ledger.Pod, w hint.Widening) ([]ledger.Claim, error) {
	h := m.allocation(view, &pod.Pod)
	online := m.topo.CPUs()
	if h.podCPUs != nil && !h.podCPUs.Set.IsSubsetOf(online) {
		return nil, &hint.OtherNodes{Err: infeasible("pod %s has CPUs %s as a whole, and they cannot change in place", pod.Pod.String(),
			h.podCPUs.Set)}
	}
	r := &resize{manager: m, allocation: h, pod: pod, bound: w.OneNode || w.Preferred}
	for i, c := range h.claims {
		if c == nil || c.Use != ledger.CPUExclusive || c.Set.IsSubsetOf(online) {
			continue
		}
		if err := r.grow(i, c.Set.Len()); err != nil {
			return nil, err
		}
	}
	return r.claims, r.empties()
}

// resize is the change of a pod's exclusive CPUs.
type resize struct {
	manager *Manager
	*allocation
	pod *ledger.Pod
	// bound means that containers stay on the NUMA nodes of their CPUs.
	bound  bool
	claims []ledger.Claim
}

// put changes the set of a container.
func (r *resize) put(i int, set, admitted cpuset.Set) {
	c, _ := r.pod.Claim(r.Pod.Containers[i].Name, Resource)
	if admitted == set {
		admitted = cpuset.Set{}
	}
	r.allocation.claims[i] = &ledger.CPUs{Set: set, Use: c.CPUs.Use, Admitted: admitted}
	c.CPUs = r.allocation.claims[i]
	r.claims = append(r.claims, c)
}

// held returns the CPUs of a container, and those of them that it has since its admission.
func (r *resize) held(i int) (set, admitted cpuset.Set) {
	c := r.allocation.claims[i]
	if admitted = c.Set.Intersect(c.Admitted); admitted.IsEmpty() {
		return c.Set, c.Set
	}
	return c.Set, admitted
}

// shrink leaves a container n CPUs.
func (r *resize) shrink(i, n int) error {
	m := r.manager
	if m.options.fullCores && n%m.perCore != 0 {
		return refuse(errdefs.Infeasible, &SMTAlignmentError{Requested: n, PerCore: m.perCore})
	}
	set, admitted := r.held(i)
	online := set.Intersect(m.topo.CPUs())
	type preference struct{ pool, first cpuset.Set }
	order := []preference{{online, admitted}}
	if m.options.fullCores {
		whole := m.wholeCores(admitted)
		order = append([]preference{{m.wholeCores(online), whole}}, order...)
	}
	var keep cpuset.Set
	for _, p := range order {
		pool := p.pool.Minus(keep)
		need := min(n-keep.Len(), pool.Len())
		first := pool.Intersect(p.first)
		if first.Len() > need {
			var err error
			if first, err = m.choose(first, need); err != nil {
				return err
			}
		}
		more, err := m.extend(keep.Union(first), pool, keep.Len()+need)
		if err != nil {
			return err
		}
		keep = more
	}
	missing := set.Minus(online)
	keep = keep.Union(missing.Intersect(admitted).Lowest(n - keep.Len()))
	keep = keep.Union(missing.Minus(keep).Lowest(n - keep.Len()))
	r.put(i, keep, admitted.Intersect(keep))
	gone := set.Minus(keep).Minus(r.union()) // an init container may have them, too
	r.available = r.available.Union(gone.Intersect(m.allocatable))
	return nil
}

// grow gives a container n CPUs that are online: those that it has and others, first those that it can take over from
// init containers before it.
func (r *resize) grow(i, n int) error {
	m := r.manager
	if m.options.fullCores && n%m.perCore != 0 {
		return refuse(errdefs.Infeasible, &SMTAlignmentError{Requested: n, PerCore: m.perCore})
	}
	set, admitted := r.held(i)
	had := set
	set, admitted = set.Intersect(m.topo.CPUs()), admitted.Intersect(m.topo.CPUs())
	c, _ := r.pod.Claim(r.Pod.Containers[i].Name, Resource)
	within := m.topo.CPUs()
	if aligned := c.Affinity != nil && !c.Affinity.Any; aligned || r.bound {
		nodes := m.topo.NodesOf(set)
		if aligned {
			nodes = nodes.Union(c.Affinity.Nodes)
		}
		within = m.topo.CPUsInNodes(nodes)
		if m.options.bySocket {
			within = m.part[socket].Cover(within)
		}
	}
	reusable := r.reusable(i).Intersect(within).Intersect(m.allocatable).Minus(set)
	pool := r.available.Intersect(within).Union(reusable)
	if m.options.fullCores {
		pool = m.wholeCores(pool)
		if set != had {
			set, pool = m.whole(set, pool, n)
			admitted = admitted.Intersect(set)
		}
	}
	if need := n - set.Len(); pool.Len() < need {
		nodes := m.topo.NodesOf(within)
		if most := m.allocatable.Intersect(within).Len(); most < n {
			return &hint.OtherNodes{Err: infeasible("container %q has CPUs on NUMA nodes %s, which have %d allocatable CPUs, and now requests %d",
				c.Owner.Container, nodes, most, n)}
		}
		return &hint.OtherNodes{Err: errdefs.Refuse(errdefs.ResizeDeferred,
			"container %q needs %d more CPUs on NUMA nodes %s, and %d are free there", c.Owner.Container, need, nodes, pool.Len())}
	}
	reusable = reusable.Intersect(pool)
	grown, err := m.extend(set, reusable, min(n, set.Len()+reusable.Len()))
	if err != nil {
		return err
	}
	if grown, err = m.extend(grown, pool.Minus(grown), n); err != nil {
		return err
	}
	r.available = r.available.Minus(grown)
	r.put(i, grown, admitted)
	return nil
}

// whole returns what a container with whole cores keeps of a set that has lost CPUs, and the pool from
// which it gets others until it has n. If a thread of a core is offline, the rest of the core goes too, as
// far as that leaves whole cores to get.
func (m *Manager) whole(set, pool cpuset.Set, n int) (keep, from cpuset.Set) {
	cores := m.part[core]
	large := func(set cpuset.Set) cpuset.Set {
		var b cpuset.Builder
		for i := range cores.Touched(set) {
			if cores.Size(i) == m.largestCore {
				b.AddSet(cores.CPUs(i).Intersect(set))
			}
		}
		return b.Set()
	}
	keep = set
	if rest := (n - set.Len()) % m.largestCore; rest > 0 {
		part := set.Minus(large(set))
		keep = set.Minus(part.Lowest(min(m.largestCore-rest, part.Len())))
	}
	if most := large(pool); most.Len() >= n-keep.Len() {
		return keep, most
	}
	return set, pool
}

// extend adds the nearest CPUs of a pool to a set, until it has n.
func (m *Manager) extend(set, pool cpuset.Set, n int) (cpuset.Set, error) {
	near := []kind{core, uncore, node, socket}
	if m.options.acrossCores {
		near = near[1:]
	}
	near = slices.DeleteFunc(near, func(k kind) bool { return k == uncore && !m.options.uncores })
	have := set
	add := func(from cpuset.Set) error {
		from = from.Intersect(pool).Minus(set)
		more, err := m.choose(from, min(n-set.Len(), from.Len()))
		set = set.Union(more)
		return err
	}
	for _, k := range near {
		home := m.part[k].Cover(have)
		if m.options.acrossCores { // other cores than those that it has
			if err := add(home.Minus(m.part[core].Cover(set))); err != nil {
				return cpuset.Set{}, err
			}
		}
		if err := add(home); err != nil {
			return cpuset.Set{}, err
		}
	}
	more, err := m.choose(pool.Minus(set), n-set.Len())
	return set.Union(more), err
}

// wholeCores returns the cores that have all their CPUs in a set.
func (m *Manager) wholeCores(set cpuset.Set) cpuset.Set {
	var b cpuset.Builder
	cores := m.part[core]
	for i := range cores.Touched(set) {
		if whole := cores.CPUs(i); whole.IsSubsetOf(set) {
			b.AddSet(whole)
		}
	}
	return b.Set()
}

// empties refuses a resize that leaves containers in an empty shared pool.
func (r *resize) empties() error {
	draft := ledger.NewDraft(r.view)
	draft.AddClaims(r.Pod.UID, r.claims...)
	if r.view.SharedCPUs().IsEmpty() || !draft.View().SharedCPUs().IsEmpty() {
		return nil
	}
	if e := sharing(r.view); e != nil {
		return errdefs.Refuse(errdefs.ResizeDeferred, "%w", e)
	}
	return nil
}

func infeasible(format string, args ...any) error {
	e := errdefs.Refuse(errdefs.Infeasible, format, args...)
	e.Provider, e.Resource = Name, Resource
	return e
}
