package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// choose picks n devices: first those that earlier containers left, then of the
// free ones the aligned, then what the plugin prefers, then the unaligned and
// those without nodes. Within a step the lowest ids are taken, where the kubelet
// follows the random order of a map.
func (m *Manager) choose(ctx context.Context, b *usage, req hint.Request, r *Resource, n int, affinity hint.Hint) ([]ledger.Device, error) {
	p := picked{need: n, ids: map[string]bool{}}
	left := r.byUse(handedOn(r, b.handedTo(req, r.Name)), affinity)
	if req.Borrows {
		return m.borrow(ctx, b, req, r, n, affinity, left)
	}
	p.take(left)
	if p.need == 0 {
		return p.sorted(), nil
	}
	free := b.available(r)
	if len(free) < p.need {
		return nil, tooFew(r, p.need, len(free))
	}
	s := r.split(free, affinity)
	if p.need < len(s.aligned) {
		preferred, err := m.preferred(ctx, r, req, s.aligned, p.sorted(), n)
		if err != nil {
			return nil, err
		}
		p.take(only(s.aligned, preferred))
		p.take(s.aligned)
		return p.sorted(), nil
	}
	p.take(s.aligned)
	if p.need == 0 {
		return p.sorted(), nil
	}
	preferred, err := m.preferred(ctx, r, req, free, p.sorted(), n)
	if err != nil {
		return nil, err
	}
	p.take(only(free, preferred))
	p.take(s.unaligned)
	p.take(s.elsewhere)
	return p.sorted(), nil
}

// borrow picks n devices for an init container of those that its pod lends and of the free ones: near before far, and the pod's
// before others. The plugin is offered what is chosen among, with what is taken already as must-include.
func (m *Manager) borrow(ctx context.Context, b *usage, req hint.Request, r *Resource, n int, affinity hint.Hint,
	lent []Device) ([]ledger.Device, error) {
	var free []Device
	if req.Below == "" {
		free = b.available(r)
	}
	if len(lent)+len(free) < n {
		return nil, tooFew(r, n, len(lent)+len(free))
	}
	p := picked{need: n, ids: map[string]bool{}}
	own, other := r.split(lent, affinity), r.split(free, affinity)
	for _, devices := range [][]Device{own.aligned, other.aligned, own.unaligned, own.elsewhere, other.unaligned, other.elsewhere} {
		if 0 < p.need && p.need < len(devices) {
			preferred, err := m.preferred(ctx, r, req, devices, p.sorted(), n)
			if err != nil {
				return nil, err
			}
			p.take(only(devices, preferred))
		}
		p.take(devices)
	}
	return p.sorted(), nil
}

func tooFew(r *Resource, requested, available int) error {
	return refusef(r.Name, "requested number of devices unavailable for %s. Requested: %d, Available: %d", r.Name, requested, available)
}

// preferred calls the plugin's GetPreferredAllocation, if it has one, with free devices and
// those taken already. It returns nil without the option, in a trial, and if the call fails, which the
// trace then has: the plugin's answer is advice. The error is the caller's end, or interrupts the plan.
func (m *Manager) preferred(ctx context.Context, r *Resource, req hint.Request, free []Device, taken []ledger.Device,
	size int) (map[string]bool, error) {
	if !r.Options.Preferred {
		return nil, nil
	}
	must := (&ledger.Devices{Devices: taken}).IDs()
	available := slices.Clone(must)
	for _, d := range free {
		available = append(available, d.ID)
	}
	slices.Sort(available)
	available = slices.Compact(available)
	answer, err := hint.Call(ctx, preferredCall(r, req, available, must, size), func(ctx context.Context) ([]string, error) {
		return m.plugins.Preferred(ctx, r.Name, available, must, size)
	})
	switch {
	case errors.Is(err, hint.ErrNotCalled):
		return nil, nil
	case err != nil && (ctx.Err() != nil || hint.Interrupts(err)):
		return nil, err
	case err != nil:
		hint.Note(ctx, r.Name, "berth chooses the devices without a preference of their plugin: GetPreferredAllocation failed: "+err.Error())
		return nil, nil
	}
	ids := make(map[string]bool, len(answer))
	for _, id := range answer {
		ids[id] = true
	}
	return ids, nil
}

// preferredCall names a GetPreferredAllocation with all that its answer depends on.
// The registration is part of that: another plugin may prefer others.
func preferredCall(r *Resource, req hint.Request, available, must []string, size int) hint.RemoteCall {
	return hint.RemoteCall{
		Party: r.Name, Name: "GetPreferredAllocation for " + req.Owner().Container,
		Inputs: fmt.Sprintf("%d of %q with %q, registration %d", size, available, must, r.session),
	}
}

// only returns the devices whose ids are among those given.
func only(devices []Device, ids map[string]bool) []Device {
	var out []Device
	for _, d := range devices {
		if ids[d.ID] {
			out = append(out, d)
		}
	}
	return out
}

// alignment is the free devices of a resource split by an affinity: those that
// touch its nodes, those that touch only others, those that touch none.
type alignment struct {
	aligned, unaligned, elsewhere []Device
}

// split splits devices; without nodes in the affinity, or in any device of the
// resource, all of them are elsewhere.
func (r *Resource) split(devices []Device, affinity hint.Hint) alignment {
	if affinity.Any || !hasNodes(r) {
		return alignment{elsewhere: devices}
	}
	aligned, unaligned := 0, 0
	for i := range devices {
		switch {
		case devices[i].Nodes.Overlaps(affinity.Nodes):
			aligned++
		case devices[i].near():
			unaligned++
		}
	}
	room := make([]Device, len(devices)) // for all three
	s := alignment{room[:0:aligned], room[aligned : aligned : aligned+unaligned], room[aligned+unaligned : aligned+unaligned]}
	for _, d := range devices {
		switch {
		case d.Nodes.Overlaps(affinity.Nodes):
			s.aligned = append(s.aligned, d)
		case d.near():
			s.unaligned = append(s.unaligned, d)
		default:
			s.elsewhere = append(s.elsewhere, d)
		}
	}
	return s
}

// byUse orders devices that may be taken over: healthy before others, aligned
// before others, then by id. The kubelet takes any of them.
func (r *Resource) byUse(devices []Device, affinity hint.Hint) []Device {
	rank := func(d Device) int {
		rank := 0
		if !r.Healthy(d) {
			rank += 2
		}
		if !affinity.Any && !d.Nodes.Overlaps(affinity.Nodes) {
			rank++
		}
		return rank
	}
	slices.SortFunc(devices, func(a, b Device) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a.ID, b.ID)) })
	return devices
}

// picked are the devices chosen so far, and how many are missing.
type picked struct {
	need    int
	devices []ledger.Device
	ids     map[string]bool
}

// take takes devices in order until nothing is missing.
func (p *picked) take(from []Device) {
	for _, d := range from {
		if p.need <= 0 {
			return
		}
		if p.ids[d.ID] {
			continue
		}
		p.ids[d.ID] = true
		p.devices = append(p.devices, ledger.Device{ID: d.ID, Nodes: d.Nodes, Topology: d.Topology})
		p.need--
	}
}

// sorted returns the devices chosen so far by id.
func (p *picked) sorted() []ledger.Device {
	out := slices.Clone(p.devices)
	slices.SortFunc(out, compareDevices)
	return out
}
