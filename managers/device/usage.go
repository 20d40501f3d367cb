package device

import (
	"cmp"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// usage is the input of a decision: the ledger's claims and the plugins'
// lists. They are made for one call and forgotten.
type usage struct {
	view *ledger.View
	snap *Snapshot
	// claims are this manager's own, in no particular order; every device in them is
	// in use.
	claims []*ledger.Claim
}

func newUsage(view *ledger.View, snap *Snapshot) *usage {
	n := 0
	for pod := range view.DeviceHolders() {
		for i := range pod.Claims {
			if ownClaim(&pod.Claims[i]) {
				n++
			}
		}
	}
	b := &usage{view: view, snap: snap, claims: make([]*ledger.Claim, 0, n)}
	for pod := range view.DeviceHolders() {
		for i := range pod.Claims {
			if c := &pod.Claims[i]; ownClaim(c) {
				b.claims = append(b.claims, c)
			}
		}
	}
	return b
}

// ownClaim returns whether a claim is this manager's. An outside provider's devices are its own
// business.
func ownClaim(c *ledger.Claim) bool { return c.Devices != nil && c.Provider == Name }

// Available returns the devices that containers can still get, by resource: the healthy ones that
// no pod has, in the order of their ids.
func Available(view *ledger.View, snap *Snapshot) map[string][]Device {
	b, out := newUsage(view, snap), map[string][]Device{}
	for r := range snap.Resources() {
		out[r.Name] = b.available(r)
	}
	return out
}

// resource returns a known resource that has not expired, and whether the name
// concerns this manager at all: because the resource is known, or because there
// are claims on it.
func (b *usage) resource(name string) (r *Resource, counted, concerned bool) {
	r, ok := b.snap.Resource(name)
	counted = ok && r.State != Expired
	claimed := func(c *ledger.Claim) bool { return c.Resource == name }
	return r, counted, counted || slices.ContainsFunc(b.claims, claimed)
}

// used reports, for each device of a resource, whether it has an owner.
func (b *usage) used(r *Resource) []bool {
	used := make([]bool, len(r.Devices))
	for _, c := range b.claims {
		if c.Resource != r.Name {
			continue
		}
		for i := range c.Devices.Devices {
			if at, listed := slices.BinarySearchFunc(r.Devices, c.Devices.Devices[i].ID, compareID); listed {
				used[at] = true
			}
		}
	}
	return used
}

// owned returns the devices that a container owns.
func (b *usage) owned(pod *workload.Pod, container, resource string) []ledger.Device {
	c, ok := b.view.Claim(ledger.Owner{Pod: pod.UID, Container: container}, resource)
	if !ok || c.Devices == nil {
		return nil
	}
	return c.Devices.Devices
}

// podOwned returns the devices that any container of a pod owns, each once.
func (b *usage) podOwned(pod *workload.Pod, resource string) []ledger.Device {
	var all []ledger.Device
	for _, c := range pod.Walk() {
		all = union(all, b.owned(pod, c.Name, resource))
	}
	return all
}

// nextContainer stands for a container after all that a pod has.
const nextContainer = "\x00"

// reusable returns the devices that a container may take over.
func (b *usage) reusable(pod *workload.Pod, container, resource string) []ledger.Device {
	held := func(at int) []ledger.Device { return b.owned(pod, pod.Containers[at].Name, resource) }
	return workload.Reusable(pod, container, held, union, minus)
}

// handedTo returns the devices that the container of a request may take over, or may borrow.
func (b *usage) handedTo(req hint.Request, resource string) []ledger.Device {
	held := func(at int) []ledger.Device { return b.owned(req.Pod, req.Pod.Containers[at].Name, resource) }
	container := req.Owner().Container
	switch {
	case req.Below != "":
		return b.owned(req.Pod, req.Below, resource)
	case req.Borrows:
		return workload.Borrowable(req.Pod, container, held, union, union, minus)
	}
	return b.reusable(req.Pod, container, resource)
}

// available returns the healthy devices without an owner, by id.
func (b *usage) available(r *Resource) []Device {
	used := b.used(r)
	free := make([]Device, 0, len(r.Devices))
	for i, d := range r.Devices {
		if r.Healthy(d) && !used[i] {
			free = append(free, d)
		}
	}
	return free
}

// present returns what is known of owned devices: as their plugin lists them
// now, or if it does not any more, as the claim remembers them.
func present(r *Resource, owned []ledger.Device) []Device {
	out := make([]Device, len(owned))
	for i, o := range owned {
		d, ok := r.Device(o.ID)
		if !ok {
			d = Device{ID: o.ID, Nodes: o.Nodes, Topology: o.Topology}
		}
		out[i] = d
	}
	return out
}

// handedOn returns those of the devices that earlier containers left which their
// plugin still lists. A device that is gone cannot be taken over.
func handedOn(r *Resource, left []ledger.Device) []Device {
	out := make([]Device, 0, len(left))
	for _, o := range left {
		if d, ok := r.Device(o.ID); ok {
			out = append(out, d)
		}
	}
	return out
}

// demand returns how many devices of each resource a request needs.
func demand(req hint.Request) workload.Quantities {
	if req.Container >= 0 {
		return req.Pod.Containers[req.Container].Limits
	}
	wants := workload.Quantities{}
	for _, c := range req.Pod.Walk() {
		for name := range c.Limits {
			if _, done := wants[name]; !done {
				wants[name] = podDemand(req.Pod, name)
			}
		}
	}
	return wants
}

// podDemand is how many devices a pod needs at its busiest moment.
func podDemand(pod *workload.Pod, name workload.Resource) int64 {
	return workload.PodTotal(pod, func(c *workload.Container) int64 { return c.Limits[name] })
}

func compareDevices(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) }

// union returns the devices of a or b; both, and the result, are in order.
func union(a, b []ledger.Device) []ledger.Device {
	all := slices.Concat(a, b)
	slices.SortStableFunc(all, compareDevices)
	return slices.CompactFunc(all, func(x, y ledger.Device) bool { return x.ID == y.ID })
}

// minus returns the devices of a that are not in b.
func minus(a, b []ledger.Device) []ledger.Device {
	return slices.DeleteFunc(slices.Clone(a), func(d ledger.Device) bool {
		_, found := slices.BinarySearchFunc(b, d, compareDevices)
		return found
	})
}
