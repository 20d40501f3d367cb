package device

import (
	"context"
	"errors"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Plan chooses devices for a container, or for all containers of a pod one after
// the other. Resources that no plugin has ever served are skipped: another provider
// may. Claims of a whole pod are its containers'; the
// kubelet leaves such pods without devices until a container is created.
func (m *Manager) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	snap := m.inventory.Snapshot()
	if req.Container >= 0 {
		return m.planContainer(ctx, newUsage(view, snap), req, affinity)
	}
	draft := ledger.NewDraft(view)
	if _, known := view.Pod(req.Pod.UID); !known {
		draft.PutPod(&ledger.Pod{Pod: *req.Pod})
	}
	var all []ledger.Claim
	for i := range req.Pod.Walk() {
		one := hint.Request{Pod: req.Pod, Container: i}
		claims, err := m.planContainer(ctx, newUsage(draft.View(), snap), one, affinity)
		if err != nil {
			return nil, err
		}
		draft.AddClaims(req.Pod.UID, claims...)
		all = append(all, claims...)
	}
	return all, nil
}

func (m *Manager) planContainer(ctx context.Context, b *usage, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	var claims []ledger.Claim
	for name, n := range req.Pod.Containers[req.Container].Limits.Sorted() {
		devices, err := m.planResource(ctx, b, req, name, int(n), affinity)
		if err != nil {
			return nil, err
		}
		if len(devices) == 0 {
			continue
		}
		claim := ledger.Claim{
			Owner: req.Owner(), Provider: Name, Resource: string(name),
			Devices: &ledger.Devices{Devices: devices},
		}
		if !affinity.Any || affinity.Preferred {
			claim.Affinity = &affinity
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// planResource returns the devices that a container is to get of one resource;
// none if it needs none or has them. The order of the tests is the kubelet's,
// and so are the texts: clients match on them.
func (m *Manager) planResource(ctx context.Context, b *usage, req hint.Request, name workload.Resource, n int,
	affinity hint.Hint) ([]ledger.Device, error) {
	resource := string(name)
	r, counted, concerned := b.resource(resource)
	if !concerned {
		return nil, b.outOf(r, req.Pod, name)
	}
	container := req.Pod.Containers[req.Container].Name
	owned := b.owned(req.Pod, container, resource)
	switch {
	case len(owned) > 0 && len(owned) != n:
		return nil, refusef(resource, "pod %q container %q changed request for resource %q from %d to %d",
			req.Pod.UID, container, resource, len(owned), n)
	case len(owned) > 0 && b.started(req.Owner()):
		return nil, nil
	case !counted:
		return nil, refusef(resource, "cannot allocate unregistered device %s", resource)
	case r.Allocatable() == 0:
		return nil, refuse(resource, r.unusable(n))
	}
	for _, d := range present(r, owned) {
		if !r.Healthy(d) {
			return nil, refusef(resource, "previously allocated devices are no longer healthy; cannot allocate unhealthy devices %s",
				resource)
		}
	}
	if len(owned) == n {
		return nil, nil
	}
	return m.choose(ctx, b, req, r, n, affinity)
}

// outOf refuses a resource whose plugin was here once and has been away for too
// long, as the kubelet's check of the node's capacity does.
func (b *usage) outOf(r *Resource, pod *workload.Pod, name workload.Resource) error {
	if r == nil {
		return nil
	}
	wanted := podDemand(pod, name)
	if wanted == 0 {
		return nil
	}
	e := errdefs.Refuse(errdefs.OutOf(r.Name), "Node didn't have enough resource: %s, requested: %d, used: 0, capacity: 0", r.Name, wanted)
	e.Provider, e.Resource = Name, r.Name
	return e
}

// started reports whether a container was started before, so that its devices are
// in use whatever their plugin reports now.
func (b *usage) started(owner ledger.Owner) bool {
	for binding := range b.view.BindingsOf(owner.Pod) {
		if binding.Owner == owner {
			return true
		}
	}
	return false
}

// unusable is why n devices cannot be had of a resource without a healthy one:
// a WaitError, unless the plugin is there and does not even have so many.
func (r *Resource) unusable(n int) error {
	switch {
	case r.State != Connected || !r.live:
		return &WaitError{Resource: r.Name, Condition: PluginAway, Since: r.Since}
	case r.Capacity() > 0 && r.Capacity() >= n:
		return &WaitError{Resource: r.Name, Condition: NoHealthyDevice}
	}
	return errors.New(noHealthy(r.Name))
}
