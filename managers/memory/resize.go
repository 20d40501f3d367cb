package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

var _ hint.Resizer = (*Manager)(nil)

// Resize returns the claims of the containers whose pinned memory changes. A container that needs
// less or equal amounts keeps its NUMA nodes, also while they are over-committed. One that needs
// more stays on its nodes if they have enough. Else the nodes are extended as for an admission, if
// the topology policy allows it, and its huge pages move to the wider nodes, too.
//
// An ordinary init container keeps its pinned memory. Without ResizePinned, another request for memory is refused, in the
// kubelet's words, for all Guaranteed pods under the static policy and all pods with pinned memory.
func (m *Manager) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod, w hint.Widening) ([]ledger.Claim, error) {
	if !workload.RequestsChange(old, wanted, workload.Memory) {
		return nil, nil
	}
	f := workload.Features{PodLevelResources: m.features.PodLevelResources}
	p, here := view.Pod(old.UID)
	holds := here && p.Holds(string(workload.Memory))
	if !holds && !(m.policy == PolicyStatic && wanted.QoSClass(f) == workload.Guaranteed) {
		return nil, nil
	}
	if !m.resizes || m.policy != PolicyStatic {
		return nil, errdefs.Refuse(errdefs.Infeasible, "Resize is infeasible for Guaranteed Pods alongside Memory Manager policy %q",
			PolicyStatic)
	}
	if changed, err := resizes(m.demand(old), m.demand(wanted)); !changed || err != nil {
		return nil, err
	}
	if here && len(m.allocation(view, wanted).claims("")) > 0 {
		return nil, &hint.OtherNodes{Err: notInPlace(errdefs.Infeasible,
			errdefs.Preconditionf("pod %s has pinned memory as a whole, and it cannot change in place", p.Pod.String()))}
	}
	draft := ledger.NewDraft(view)
	var changed []ledger.Claim
	// What other containers of the pod give back is free for those that grow.
	for _, growing := range []bool{false, true} {
		for i := range wanted.Containers {
			c, before := &wanted.Containers[i], old.Container(wanted.Containers[i].Name)
			from, to := before.Requests[workload.Memory], c.Requests[workload.Memory]
			if from == to || growing != (to > from) {
				continue
			}
			claims, err := m.resize(draft, wanted, i, w)
			if err != nil {
				return nil, err
			}
			changed = append(changed, claims...)
		}
	}
	return changed, nil
}

// resizes returns whether a pod or its containers get another amount of pinned memory, and refuses it for an
// ordinary init container.
func resizes(had, gets demand) (changed bool, err error) {
	changed = !slices.Equal(had.total(), gets.total())
	for i := range gets.Pod.Containers {
		c := &gets.Pod.Containers[i]
		if slices.Equal(had.of(had.Pod.Container(c.Name)), gets.of(c)) {
			continue
		}
		if changed = true; c.Role == workload.Init {
			return true, notInPlace(errdefs.Infeasible, errdefs.Preconditionf(
				"container %q is an ordinary init container: its pinned memory passes to later containers, so only an admission changes it", c.Name))
		}
	}
	return changed, nil
}

// resize plans the memory of one container again.
func (m *Manager) resize(draft *ledger.Draft, pod *workload.Pod, i int, w hint.Widening) ([]ledger.Claim, error) {
	c := &pod.Containers[i]
	h := m.allocation(draft.View(), pod)
	held, wants := h.claims(c.Name), h.of(c)
	if len(held) == 0 {
		return nil, nil
	}
	if !grow(held, wants) {
		claims := shrunk(held, wants)
		draft.AddClaims(pod.UID, claims...)
		return claims, nil
	}
	draft.DropClaims(pod.UID, held...)
	view := draft.View()
	h = m.allocation(view, pod)
	req := hint.Request{Pod: pod, Container: i}
	r := &resize{view: view, h: h, f: h.containerFamily(req, wants), req: req, held: held, rule: w}
	planned, err := r.plan()
	if err != nil {
		return nil, err
	}
	draft.AddClaims(pod.UID, planned...)
	return planned, nil
}

// grow returns whether a container needs more of something than it holds.
func grow(held []ledger.Claim, wants []want) bool {
	return slices.ContainsFunc(wants, func(w want) bool {
		i := slices.IndexFunc(held, func(c ledger.Claim) bool { return c.Resource == w.resource })
		return w.bytes > 0 && (i < 0 || uint64(w.bytes) > bytesOf(&held[i]))
	})
}

func bytesOf(c *ledger.Claim) (bytes uint64) {
	for _, b := range c.Memory {
		bytes += b.Bytes
	}
	return bytes
}

// shrunk returns the claims of which less is needed, on the same nodes. What is given back is on the
// highest nodes.
func shrunk(held []ledger.Claim, wants []want) (out []ledger.Claim) {
	for _, c := range held {
		rest := uint64(max(0, amount(wants, c.Resource)))
		if rest == bytesOf(&c) {
			continue
		}
		c.Memory = slices.Clone(c.Memory)
		for i, b := range c.Memory {
			var has ledger.NodeBytes
			for id := range b.Nodes.All() {
				has[id] = b.On(numa.Of(id))
			}
			n := min(rest, b.Bytes)
			c.Memory[i] = block(int64(min(n, maxBytes)), b.Nodes, has, &amounts{})
			rest -= n
		}
		out = append(out, c)
	}
	return out
}

// resize is a container that needs more memory. The view does not have its claims.
type resize struct {
	view *ledger.View
	h    *allocation
	f    *family
	req  hint.Request // for the container
	held []ledger.Claim
	rule hint.Widening
}

func (r *resize) plan() ([]ledger.Claim, error) {
	old := nodesIn(r.held...).Intersect(r.h.m.nodes) // others are gone
	affinity := hint.Hint{Nodes: old}
	if a := r.held[0].Affinity; a != nil {
		affinity.Preferred = a.Preferred
	}
	planned, err := r.h.planIn(r.view, r.f, r.req, affinity)
	switch passes := new(PlacementError); {
	case err != nil && !errors.As(err, &passes):
		return nil, notInPlace(errdefs.Infeasible, err)
	case err != nil || nodesIn(planned...) != old && !r.mayExtend(nodesIn(planned...)):
		return nil, &hint.OtherNodes{Err: r.refusal(old)}
	}
	for at := range planned {
		same := func(c ledger.Claim) bool { return c.Resource == planned[at].Resource }
		if was := slices.IndexFunc(r.held, same); was >= 0 {
			planned[at].Affinity = r.held[was].Affinity
		}
	}
	return planned, nil
}

func nodesIn(claims ...ledger.Claim) (nodes numa.Mask) {
	for _, c := range claims {
		nodes = nodes.Union(ledger.NodesOf(c.Memory))
	}
	return nodes
}

// mayExtend returns whether the topology policy allows the container's memory on other nodes.
func (r *resize) mayExtend(nodes numa.Mask) bool {
	return !r.rule.OneNode && (!r.rule.Preferred || nodes.Len() == r.f.least() && !r.bound(nodes))
}

// bound returns whether another claim, or a device that another program has allocated, prefers other nodes than the
// given ones. Those of the container count, in pod scope those of the pod.
func (r *resize) bound(nodes numa.Mask) bool {
	if r.external(nodes) {
		return true
	}
	return slices.ContainsFunc(r.h.record.Claims, func(c ledger.Claim) bool {
		if c.Owner.Container != r.req.Owner().Container && r.rule.Scope != hint.PodScope {
			return false
		}
		on := nodesIn(c)
		switch {
		case c.CPUs != nil:
			on = r.view.Machine().NodesOf(c.CPUs.Set)
		case c.Devices != nil:
			for _, d := range c.Devices.Devices {
				on = on.Union(d.Nodes)
			}
		case len(c.Memory) == 0 && c.Affinity != nil:
			on = c.Affinity.Nodes
		}
		return !on.IsEmpty() && on != nodes
	})
}

// external returns whether devices of another program are near other nodes than the given ones.
func (r *resize) external(nodes numa.Mask) bool {
	return slices.ContainsFunc(r.h.record.Pod.Containers, func(c workload.Container) bool {
		if c.Name != r.req.Owner().Container && r.rule.Scope != hint.PodScope {
			return false
		}
		var on numa.Mask
		for _, d := range c.ExternalDevices {
			on = on.Union(d.Nodes)
		}
		return !on.IsEmpty() && on != nodes
	})
}

// refusal says what the container lacks: at the moment, or for good.
func (r *resize) refusal(old numa.Mask) error {
	text := fmt.Sprintf("container %q has memory on NUMA nodes %s and now requests", r.req.Owner().Container, old)
	for i, w := range r.f.wants {
		var most int64
		if c := r.f.caps[i]; c != nil {
			most = c.allocatable.sum(old)
		}
		text += fmt.Sprintf(" %s of %s (they have %s for pods, %s are free)", quantity(uint64(w.bytes)), w.resource,
			quantity(uint64(most)), quantity(uint64(max(0, r.f.free[i].sum(old))+r.f.reused(old, i))))
	}
	all := r.h.m.nodes
	switch {
	case r.f.capable(old):
		return notInPlace(errdefs.ResizeDeferred, errdefs.Unavailablef("%s", text))
	case !r.f.capable(all):
		return notInPlace(errdefs.Infeasible, errdefs.Preconditionf("%s, more than all NUMA nodes together have for pods", text))
	case r.rule.OneNode, r.rule.Preferred && r.bound(all):
		return notInPlace(errdefs.Infeasible, errdefs.Preconditionf("%s, and the topology policy allows no other nodes in addition", text))
	}
	return notInPlace(errdefs.ResizeDeferred, errdefs.Unavailablef("%s, and wider nodes are not free", text))
}

// notInPlace is a refusal of this provider to resize.
func notInPlace(reason errdefs.Reason, err error) error {
	e := errdefs.Refuse(reason, "%w", err)
	e.Provider, e.Resource = Name, string(workload.Memory)
	return e
}
