package memory

import (
	"context"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Plan takes what a container requests from the nodes of the affinity, or from
// wider ones if these do not have enough; with pod scope that of the pod's
// containers one after the other, or of the pod as a whole if it has pod-level
// resources. An owner that holds memory already keeps it, whatever it
// requests.
//
// Refusals: *EmptyPodPoolError with the reason of the same name,
// *PlacementError and *UnknownPagesError without a reason.
func (m *Manager) Plan(_ context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if m.policy == PolicyNone {
		return nil, nil
	}
	h := m.allocation(view, req.Pod)
	switch {
	case h.None():
		return nil, nil
	case req.Scope() == hint.ContainerScope:
		return h.planContainer(view, req, affinity)
	case h.Whole:
		return h.planPod(view, affinity)
	}
	return m.planEach(view, req.Pod, affinity)
}

// planEach plans the containers one after the other under one affinity, each
// with the plans of those before it counted.
func (m *Manager) planEach(view *ledger.View, pod *workload.Pod, affinity hint.Hint) ([]ledger.Claim, error) {
	draft := ledger.NewDraft(view)
	if _, known := view.Pod(pod.UID); !known {
		draft.PutPod(&ledger.Pod{Pod: *pod})
	}
	var claims []ledger.Claim
	for i := range pod.Containers {
		planned, err := m.allocation(draft.View(), pod).planContainer(draft.View(), hint.Request{Pod: pod, Container: i}, affinity)
		if err != nil {
			return nil, err
		}
		draft.AddClaims(pod.UID, planned...)
		claims = append(claims, planned...)
	}
	return claims, nil
}

// planContainer plans what a container requests, if it requests any and holds none. With pod-level resources a container
// may request nothing.
func (h *allocation) planContainer(view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	wants := h.of(&h.Pod.Containers[req.Container])
	if len(wants) == 0 || len(h.claims(req.Owner().Container)) > 0 {
		return nil, nil
	}
	f := h.containerFamily(req, wants)
	if req.Below != "" {
		return h.planBelow(view, f, req, affinity)
	}
	return h.planIn(view, f, req, affinity)
}

// planBelow takes all amounts from what one container has.
func (h *allocation) planBelow(view *ledger.View, f *family, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	for _, claim := range h.claims(req.Below) {
		for _, b := range claim.Memory {
			enough := func(i int) bool { return f.wants[i].bytes == 0 || f.reused(b.Nodes, i) >= f.wants[i].bytes }
			all := true
			for i := range f.wants {
				all = all && enough(i)
			}
			if all {
				return h.on(f, req, b.Nodes, affinity), nil
			}
		}
	}
	return nil, f.refusal(view, NoExtension, h.record.MemoryNodes(req.Below))
}

// planIn plans the amounts of a family for a container.
func (h *allocation) planIn(view *ledger.View, f *family, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	nodes, err := f.place(view, affinity)
	if err != nil {
		return nil, err
	}
	return h.on(f, req, nodes, affinity), nil
}

// on makes the claims of a container on nodes.
func (h *allocation) on(f *family, req hint.Request, nodes numa.Mask, affinity hint.Hint) []ledger.Claim {
	claims := make([]ledger.Claim, len(f.wants))
	for at, w := range f.wants {
		claims[at] = h.claim(req.Owner().Container, w, nodes, h.handedOn(req, w.resource, nodes), &f.free[at], affinity)
	}
	return claims
}

// place decides on which nodes a request is served: those of the affinity if
// they have enough, or the narrowest set that contains them and does; without an
// affinity the narrowest of all. What is handed on counts only where nodes have
// to be found.
func (f *family) place(view *ledger.View, affinity hint.Hint) (numa.Mask, error) {
	for i, w := range f.wants {
		if f.caps[i] == nil && w.bytes > 0 {
			return 0, refuse("", w.resource, &UnknownPagesError{Resource: w.resource})
		}
	}
	nodes := affinity.Nodes.Intersect(f.m.nodes)
	if affinity.Any {
		best, ok := f.best(0)
		switch {
		case !ok:
			return 0, f.refusal(view, NoDefault, f.m.nodes)
		case affinity.Preferred && !best.Preferred:
			return 0, f.refusal(view, NoPreferredDefault, f.m.nodes)
		}
		nodes = best.Nodes
	}
	if !f.fits(nodes) || f.m.apart && !f.legal(nodes) {
		best, ok := f.best(nodes)
		switch {
		case !ok:
			return 0, f.refusal(view, NoExtension, nodes)
		case affinity.Preferred && !best.Preferred:
			return 0, f.refusal(view, NoPreferredExtension, nodes)
		}
		nodes = best.Nodes
	}
	if f.violates(nodes) {
		return 0, f.refusal(view, GroupTaken, nodes)
	}
	return nodes, nil
}

// planPod takes an amount for a pod as a whole and notes what each of its
// containers may use of it (KEP-5526, pod scope). A pod that has its memory
// already keeps it; in the kubelet it would take it again (kubernetes#140906).
func (h *allocation) planPod(view *ledger.View, affinity hint.Hint) ([]ledger.Claim, error) {
	total := h.total()
	if len(total) == 0 || len(h.claims("")) > 0 {
		return nil, nil
	}
	if r, early := h.starved(total); r != "" {
		return nil, refuse(errdefs.EmptyPodSharedPoolError, r, &EmptyPodPoolError{Resource: r, Init: early})
	}
	f := h.table.family(total, nil)
	nodes, err := f.place(view, affinity)
	if err == nil {
		err = h.uncounted(total)
	}
	if err != nil {
		return nil, err
	}
	var claims []ledger.Claim
	for at, w := range total {
		claims = append(claims, h.claim("", w, nodes, ledger.NodeBytes{}, &f.free[at], affinity))
	}
	// Parts of the pod's memory are counted nowhere, so they need no place either.
	for i, part := range h.divide(total) {
		for _, w := range part {
			name := h.Pod.Containers[i].Name
			claims = append(claims, h.claim(name, w, nodes, ledger.NodeBytes{}, &amounts{}, affinity))
		}
	}
	return claims, nil
}

// uncounted refuses huge pages of a container that the pod as a whole does not request.
// Validation refuses such a pod, but not every caller validates.
func (h *allocation) uncounted(total []want) error {
	for _, c := range h.Pod.Containers {
		for _, w := range h.of(&c) {
			if w.bytes > 0 && amount(total, w.resource) == 0 {
				return refuse("", w.resource, &UncountedPagesError{Container: c.Name, Resource: w.resource})
			}
		}
	}
	return nil
}

// divide returns what each container may use of its pod's memory. One that is
// Guaranteed by itself has what it requests. The others share what sidecars and
// app containers with memory of their own leave; an init container shares only with
// the sidecars before it.
func (h *allocation) divide(total []want) [][]want {
	rest := func(until int) []want {
		var out []want
		for _, w := range total {
			for _, c := range h.Pod.Containers[:until] {
				if c.Role != workload.Init {
					w.bytes -= amount(h.of(&c), w.resource)
				}
			}
			if w.bytes > 0 {
				out = append(out, w)
			}
		}
		return out
	}
	parts := make([][]want, len(h.Pod.Containers))
	for i, c := range h.Pod.Walk() {
		switch own := h.of(c); {
		case own != nil:
			parts[i] = own
		case c.Role == workload.Init:
			parts[i] = rest(i)
		default:
			parts[i] = rest(len(h.Pod.Containers))
		}
	}
	return parts
}
