package state

import (
	"cmp"
	"slices"

	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
)

// deviceInUse is a device that is in use.
type deviceInUse struct {
	device  ledger.Device
	holders []ledger.Owner
}

// devicesInUse are the devices of one resource that are in use, by id.
type devicesInUse map[string]*deviceInUse

// held returns all claims by resource; holders come in the order of the
// claims.
func held(view *ledger.View) map[string]devicesInUse {
	out := make(map[string]devicesInUse)
	for c := range view.Claims() {
		if c.Devices == nil {
			continue
		}
		if out[c.Resource] == nil {
			out[c.Resource] = make(devicesInUse)
		}
		for _, d := range c.Devices.Devices {
			h := out[c.Resource][d.ID]
			if h == nil {
				h = &deviceInUse{device: d}
				out[c.Resource][d.ID] = h
			}
			h.holders = append(h.holders, c.Owner)
		}
	}
	return out
}

// states returns the devices of a resource by id. One that is held although its
// plugin does not list it any more has no health.
func states(r *device.Resource, held devicesInUse) []*devicev1.DeviceState {
	var out []*devicev1.DeviceState
	for _, d := range r.Devices {
		state := &devicev1.DeviceState{Device: convert.Device(ledger.Device{ID: d.ID, Nodes: d.Nodes, Topology: d.Topology})}
		if h := held[d.ID]; h != nil {
			state.Holders = convert.Refs(h.holders)
		}
		out = append(out, state)
	}
	for id, h := range held {
		if _, listed := r.Device(id); !listed {
			out = append(out, &devicev1.DeviceState{Device: convert.Device(h.device), Holders: convert.Refs(h.holders)})
		}
	}
	for _, state := range out {
		allocations.HealthHistory(state.Device, r)
	}
	slices.SortFunc(out, func(a, b *devicev1.DeviceState) int {
		return cmp.Compare(idOf(a), idOf(b))
	})
	return out
}

func idOf(d *devicev1.DeviceState) string { return d.GetDevice().GetId() }
