package driver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/workload"
)

const (
	// resend is the time between two reports without a change. After 30 s without one, the kubelet calls
	// the health unknown.
	resend = 10 * time.Second
	// maxProblems bounds the problems of a device in a report.
	maxProblems = 4
)

// pool is what claims may have of a NUMA node now.
type pool struct {
	cpus  cpuset.Set
	bytes uint64
}

// health has the health of the devices for all who watch it.
type health struct {
	mu      sync.Mutex // guards the fields below
	devices []kubeletplugin.DeviceHealth
	changed chan struct{} // closed at the next change; nil before the first one is awaited
}

// set replaces the health of the devices.
func (h *health) set(devices []kubeletplugin.DeviceHealth) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.devices, devices) {
		return
	}
	h.devices = devices
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// get returns a report, and a channel that is closed when there is another one.
func (h *health) get(now time.Time) (kubeletplugin.DeviceHealthReport, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	out := kubeletplugin.DeviceHealthReport{Devices: slices.Clone(h.devices)}
	for i := range out.Devices {
		out.Devices[i].LastUpdated = now
	}
	return out, h.changed
}

// grow adds what a new claim has to the pools, if they are what pods leave: the claim may have what a pod has left since the pools
// were measured. The caller holds mu.
func (d *Driver) grow(c *claim) {
	if !d.onePool || d.pools == nil {
		return
	}
	for _, p := range c.Parts {
		has := d.pools[p.Node]
		if set, err := cpuset.Parse(p.CPUs); err == nil {
			has.cpus = has.cpus.Union(set)
		}
		held := uint64(0)
		for _, other := range d.prepared {
			for _, q := range other.Parts {
				if q.Node == p.Node {
					size, _ := q.bytes()
					held += size
				}
			}
		}
		has.bytes = max(has.bytes, held)
		d.pools[p.Node] = has
	}
}

// assess computes the health of the devices from the pools and the prepared claims. The caller holds mu.
func (d *Driver) assess() {
	held := map[uint32]pool{}
	problems := map[uint32][]string{}
	for _, uid := range slices.Sorted(maps.Keys(d.prepared)) {
		c := d.prepared[uid]
		lost := d.unrestored[uid]
		for _, p := range c.Parts {
			if lost != nil {
				problems[p.Node] = append(problems[p.Node], fmt.Sprintf("claim %s/%s has CPUs %s, but is not in berthd's ledger: %.200s",
					c.Namespace, c.Name, p.CPUs, lost))
			}
			size, _ := p.bytes()
			h := held[p.Node]
			h.bytes += size
			held[p.Node] = h
			set, err := cpuset.Parse(p.CPUs)
			if gone := set.Minus(d.pools[p.Node].cpus); err == nil && !gone.IsEmpty() {
				problems[p.Node] = append(problems[p.Node], fmt.Sprintf("CPUs %s of claim %s/%s are offline, or not for claims any more",
					gone, c.Namespace, c.Name))
			}
		}
	}
	nodes := maps.Clone(d.pools)
	if nodes == nil {
		nodes = map[uint32]pool{}
	}
	for node, h := range held {
		// A node without an online CPU for claims is not in the pools, whatever its memory is.
		if has, published := nodes[node]; published && h.bytes > has.bytes {
			problems[node] = append(problems[node], fmt.Sprintf("claims hold %s of memory, and there is %s for claims",
				workload.Memory.Text(int64(min(h.bytes, 1<<62))), workload.Memory.Text(int64(min(has.bytes, 1<<62)))))
		}
		nodes[node] = pool{} // a device that is not published any more
	}
	var out []kubeletplugin.DeviceHealth
	for _, node := range slices.Sorted(maps.Keys(nodes)) {
		one := kubeletplugin.DeviceHealth{
			PoolName: d.NodeName, DeviceName: fmt.Sprintf("%s%d", devicePrefix, node), Health: kubeletplugin.HealthStatusHealthy,
		}
		switch list := problems[node]; {
		case d.pools == nil:
			one.Health, one.Message = kubeletplugin.HealthStatusUnknown, "berthd does not answer"
		case len(list) > maxProblems:
			one.Health = kubeletplugin.HealthStatusUnhealthy
			one.Message = fmt.Sprintf("%s; and %d more", strings.Join(list[:maxProblems], "; "), len(list)-maxProblems)
		case len(list) > 0:
			one.Health, one.Message = kubeletplugin.HealthStatusUnhealthy, strings.Join(list, "; ")
		}
		out = append(out, one)
	}
	d.health.set(out)
}

// WatchHealthStatus implements kubeletplugin.DRAPlugin. A device is unhealthy while a prepared claim holds CPUs or
// memory of it that claims cannot have any more.
func (d *Driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	tick := time.NewTicker(resend)
	defer tick.Stop()
	for {
		report, changed := d.health.get(time.Now())
		select {
		case reports <- report:
		case <-ctx.Done():
			return nil
		}
		select {
		case <-changed:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
