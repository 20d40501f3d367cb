package device

import (
	"slices"
	"time"

	"github.com/berthd/berth/managers/numa"
)

// Grace limits how long a resource keeps its capacity after its plugin has gone, and
// how long a plugin that was there before a restart has to come back.
const Grace = 5 * time.Minute

// Device is one device as its plugin listed it.
type Device struct {
	ID      string
	Healthy bool
	// Nodes are the NUMA nodes it is near to. They need not exist on the machine.
	Nodes numa.Mask
	// Topology means that the plugin sent a topology, possibly without nodes.
	Topology bool
	// Alien means that the plugin named nodes and none that any machine has: below
	// zero, or more than a mask holds. Such a device is not one without nodes, which
	// may be anywhere; it is near to no node that a pod could be placed on.
	Alien bool
}

// near reports whether the device is near to nodes at all.
func (d Device) near() bool { return d.Alien || !d.Nodes.IsEmpty() }

// Options are a plugin's DevicePluginOptions.
type Options struct {
	// Preferred: the plugin implements GetPreferredAllocation.
	Preferred bool
	// PreStart: the plugin requests PreStartContainer before each start of a container.
	PreStart bool
}

// State is the state of a resource's plugin.
type State string

const (
	// Expected: there was a plugin before a restart, and it is not back yet.
	Expected State = "expected"
	// Connected: a plugin is registered.
	Connected State = "connected"
	// Stopped: the plugin has gone, less than the grace period ago.
	Stopped State = "stopped"
	// Expired: the plugin has been away for longer than the grace period.
	Expired State = "expired"
)

// Resource holds what is known of one resource. It is part of a snapshot and must
// not be changed.
type Resource struct {
	Name  string
	State State
	// Since is when State was entered.
	Since time.Time
	// Away is when the plugin went, or when its return was first awaited; zero while
	// it is connected, and where the resource is known permanently (Retire).
	Away time.Time
	// Options of the newest plugin; while it is Expected only what is remembered.
	Options Options
	// Devices of the last list, by id; none once it is Expired.
	Devices []Device

	session uint64 // the newest registration
	// live: the list is of a plugin that has not gone since.
	live    bool
	history history
}

// Registration numbers the newest session of the resource among all of the
// inventory, from 1; 0 if there was none.
func (r *Resource) Registration() uint64 { return r.session }

// Awaited reports whether a plugin that was there before is to come back, or is back
// and has not listed its devices yet.
func (r *Resource) Awaited() bool { return r.State == Expected || r.State == Connected && !r.live }

// Capacity is the number of devices, whatever their health.
func (r *Resource) Capacity() int { return len(r.Devices) }

// Allocatable is the number of healthy devices, those in use included.
func (r *Resource) Allocatable() int {
	n := 0
	for i := range r.Devices {
		if r.Healthy(r.Devices[i]) {
			n++
		}
	}
	return n
}

// Healthy reports whether a device of this resource may be handed out: its plugin
// reports so, and is connected.
func (r *Resource) Healthy(d Device) bool { return r.live && d.Healthy }

// Device finds a device by its id.
func (r *Resource) Device(id string) (Device, bool) {
	i, ok := slices.BinarySearchFunc(r.Devices, id, compareID)
	if !ok {
		return Device{}, false
	}
	return r.Devices[i], true
}
