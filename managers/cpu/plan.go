package cpu

import (
	"context"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Plan chooses the CPUs of a container, or with pod scope those of the pod's
// containers one after the other, or of the pod as a whole if it has pod-level
// resources. Containers that share CPUs get no claim, except within a pod's own
// set; an owner that holds CPUs already keeps them, whatever it requests.
//
// Refusals: *SMTAlignmentError and *EmptyPoolError with the reasons of the same
// names, *ShortageError without a reason.
func (m *Manager) Plan(_ context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if m.policy == PolicyNone {
		return nil, nil
	}
	h := m.allocation(view, req.Pod)
	switch {
	case h.Left:
		return nil, nil
	case req.Scope() == hint.ContainerScope:
		return m.planContainer(h, req, affinity, nil)
	case h.Whole:
		return m.planPod(h, affinity)
	}
	var claims []ledger.Claim
	var err error
	for i := range req.Pod.Containers {
		if claims, err = m.planContainer(h, hint.Request{Pod: req.Pod, Container: i}, affinity, claims); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// planContainer appends the claim of one container, if it gets one.
func (m *Manager) planContainer(h *allocation, req hint.Request, affinity hint.Hint, claims []ledger.Claim) ([]ledger.Claim, error) {
	i := req.Container
	n := h.of(&h.Pod.Containers[i])
	if n == 0 || h.claims[i] != nil {
		return claims, nil
	}
	choose := func() (cpuset.Set, error) {
		// As in the kubelet, this does not count what could be reused.
		if err := m.alignable(h.available, n); err != nil {
			return cpuset.Set{}, err
		}
		return m.near(h.available.Union(h.reusable(i)), n, affinity)
	}
	if req.Borrows {
		choose = func() (cpuset.Set, error) { return m.borrow(h, req, n, affinity) }
	}
	set, err := choose()
	if err != nil {
		return nil, err
	}
	return append(claims, h.claim(i, set, ledger.CPUExclusive, affinity)), nil
}

// borrow takes n CPUs for an init container from its pod's, and the missing ones from the free ones: near before far, and the
// pod's before others.
func (m *Manager) borrow(h *allocation, req hint.Request, n int, affinity hint.Hint) (cpuset.Set, error) {
	loan, free := h.loan(req).Intersect(m.allocatable), h.available
	if req.Below != "" {
		free = cpuset.Set{}
	}
	if err := m.alignable(loan.Union(free), n); err != nil {
		return cpuset.Set{}, err
	}
	near, nodes := m.topo.CPUs(), 0
	if !affinity.Any {
		near, nodes = m.home(affinity), affinity.Nodes.Len()
	}
	var set cpuset.Set
	for _, pool := range []cpuset.Set{loan.Intersect(near), free.Intersect(near), loan.Minus(near), free.Minus(near)} {
		part, err := m.chooseOn(pool, min(n-set.Len(), pool.Len()), nodes)
		if err != nil {
			return cpuset.Set{}, err
		}
		set = set.Union(part)
	}
	if set.Len() < n {
		return cpuset.Set{}, shortage(n, set.Len())
	}
	return set, nil
}

// home are the CPUs of an affinity's nodes, or under align-by-socket those of their sockets.
func (m *Manager) home(affinity hint.Hint) cpuset.Set {
	home := m.topo.CPUsInNodes(affinity.Nodes)
	if m.options.bySocket {
		home = m.part[socket].Cover(home)
	}
	return home
}

// alignable refuses n CPUs that cannot be whole cores, if that is configured. It
// counts threads, so it does not ensure whole cores where single threads are
// free.
func (m *Manager) alignable(pool cpuset.Set, n int) error {
	if !m.options.fullCores {
		return nil
	}
	if n%m.perCore != 0 {
		return refuse(errdefs.SMTAlignmentError, &SMTAlignmentError{Requested: n, PerCore: m.perCore})
	}
	if free := pool.IntersectLen(m.physical); n > free {
		return refuse(errdefs.SMTAlignmentError,
			&SMTAlignmentError{Requested: n, PerCore: m.perCore, NotEnough: true, AvailablePhysical: free})
	}
	return nil
}

// near takes n CPUs of a pool, as many of them as possible on the nodes of the
// affinity (on their sockets, under align-by-socket), the rest anywhere.
func (m *Manager) near(pool cpuset.Set, n int, affinity hint.Hint) (cpuset.Set, error) {
	var got cpuset.Set
	if !affinity.Any {
		aligned := pool.Intersect(m.home(affinity))
		var err error
		if got, err = m.chooseOn(aligned, min(n, aligned.Len()), affinity.Nodes.Len()); err != nil {
			return cpuset.Set{}, err
		}
	}
	rest, err := m.choose(pool.Minus(got), n-got.Len())
	if err != nil {
		return cpuset.Set{}, err
	}
	set := got.Union(rest)
	if set.Len() != n {
		return cpuset.Set{}, errdefs.Internalf("choose %d cpus of %s: got %s", n, pool, set)
	}
	return set, nil
}

// Validate refuses a plan that leaves containers in an empty shared pool, which
// can happen if no CPU is reserved, or under strict-cpu-reservation. In the
// kubelet such containers continue running on CPUs that others were promised
// (kubernetes#141196).
func (m *Manager) Validate(_ context.Context, view *ledger.View, _ hint.Request) error {
	if m.policy == PolicyNone || !view.SharedCPUs().IsEmpty() {
		return nil
	}
	if e := sharing(view); e != nil {
		return refuse("", e)
	}
	return nil
}

// sharing names a container in the shared pool; nil if there is none.
func sharing(view *ledger.View) *EmptyPoolError {
	for pod := range view.Pods() {
		for i := range pod.Pod.Containers {
			if _, holds := pod.Claim(pod.Pod.Containers[i].Name, Resource); !holds {
				return &EmptyPoolError{Pod: pod.UID(), Container: pod.Pod.Containers[i].Name}
			}
		}
	}
	return nil
}
