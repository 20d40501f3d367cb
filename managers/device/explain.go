package device

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

var _ hint.Explainer = (*Manager)(nil)

// Explain lists the resources of which too few devices are near to some nodes. Where
// no device has nodes, or all nodes are given, it counts every device.
func (m *Manager) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	b := newUsage(view, m.inventory.Snapshot())
	var list []ledger.Shortage
	for name, n := range demand(req).Sorted() {
		r, _, concerned := b.resource(string(name))
		expired := r != nil && r.State == Expired
		if n <= 0 || !concerned && !expired {
			continue
		}
		var owned, reusable []ledger.Device
		if req.Container < 0 {
			owned = b.podOwned(req.Pod, string(name))
		} else {
			owned, reusable = b.owned(req.Pod, req.Owner().Container, string(name)), b.handedTo(req, string(name))
		}
		if len(owned) > 0 {
			continue
		}
		if s, short := b.shortage(string(name), r, uint64(n), reusable, nodes); short {
			list = append(list, s)
		}
	}
	return list
}

// shortage counts the devices of a resource near to some nodes. A resource that
// is only known from claims, r being nil, has none.
func (b *usage) shortage(name string, r *Resource, n uint64, reusable []ledger.Device, nodes numa.Mask) (ledger.Shortage, bool) {
	s := ledger.Shortage{Resource: name, Need: n}
	near := func(numa.Mask) bool { return true }
	if r != nil && hasNodes(r) {
		s.Nodes = nodes.String()
		if machine := b.view.Machine().NodeMask(); !machine.IsSubsetOf(nodes) {
			near = nodes.Overlaps
		}
	}
	again := map[string]bool{}
	for _, d := range reusable {
		again[d.ID] = true
	}
	if r != nil {
		for i, used := range b.used(r) {
			d := &r.Devices[i]
			switch {
			case !near(d.Nodes):
			case again[d.ID], r.Healthy(*d) && !used:
				s.Free++
			case used:
				s.Held++
			default:
				s.Withheld++
			}
		}
	}
	switch {
	case s.Withheld > 0 && !r.live:
		s.Why = "of a plugin that is away"
	case r == nil || !r.live:
		s.Why = "the plugin is away"
	case s.Withheld > 0:
		s.Why = "unhealthy"
	}
	s.HeldBy(b.view, func(c *ledger.Claim) (held uint64) {
		if c.Devices == nil || c.Resource != name {
			return 0
		}
		for i := range c.Devices.Devices {
			if d := &c.Devices.Devices[i]; near(d.Nodes) && !again[d.ID] {
				held++
			}
		}
		return held
	})
	s.Structural = r != nil && r.live && n > s.Free+s.Held+s.Withheld
	return s, s.Free < n
}
