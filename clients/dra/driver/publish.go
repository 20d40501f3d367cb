package driver

import (
	"context"
	"fmt"
	"slices"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/cpuset"
)

const (
	// mebi is the step of memory, and usualMemory the memory of a claim that requests none.
	mebi        = 1 << 20
	usualMemory = 128 * mebi
	// maxAttribute bounds the value of an attribute in bytes, as the API server does.
	maxAttribute = 64
	// pause is the time between two tries to follow berthd.
	pause = time.Second
	// settled is the time between the first change of what pods have and the publication, in which further changes are
	// awaited, and spaced the time between two such publications.
	settled, spaced = 300 * time.Millisecond, 3 * time.Second
	// again is how often the node is compared again: the kubelet may start with another configuration.
	again = 5 * time.Minute
)

// Publisher publishes the devices of the node; *kubeletplugin.Helper implements it.
type Publisher interface {
	PublishResources(ctx context.Context, resources resourceslice.DriverResources) error
}

// Follow publishes the amounts for claims, again after each possible change of the machine or the
// policy, until the context ends. After a lost connection, berthd may have lost claims.
func (d *Driver) Follow(ctx context.Context, p Publisher) {
	for {
		err := d.follow(ctx, p)
		if ctx.Err() != nil {
			return
		}
		d.Log.Warn("devices stay as they are published, until berthd and the API server answer", "error", err)
		d.mu.Lock()
		d.unsure, d.pools = true, nil
		d.assess()
		d.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// follow publishes with each message of a stream.
func (d *Driver) follow(ctx context.Context, p Publisher) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	types := []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_MACHINE, allocationv1.EventType_EVENT_TYPE_POLICY}
	allocatable, err := d.Client.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
	if err != nil {
		return err
	}
	if allocatable.GetResourceClaimsFromAllocatable() { // what pods have changes what claims can have
		types = append(types, allocationv1.EventType_EVENT_TYPE_ADDED, allocationv1.EventType_EVENT_TYPE_REMOVED, allocationv1.EventType_EVENT_TYPE_CHANGED)
	}
	stream, err := d.Client.Allocation().Watch(ctx, &allocationv1.WatchRequest{Types: types})
	if err != nil {
		return err
	}
	type read struct {
		message *allocationv1.WatchResponse
		err     error
	}
	reads := make(chan read)
	go func() {
		for {
			message, err := stream.Recv()
			select {
			case reads <- read{message, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	tick := time.NewTicker(again)
	defer tick.Stop()
	var later <-chan time.Time // set while changes of what pods have are to be published
	var last time.Time
	for {
		compared := false
		select {
		case r := <-reads:
			switch {
			case r.err != nil:
				return r.err
			case r.message.GetInitial(): // berthd may have been restarted before
				d.mu.Lock()
				d.unsure = true
				d.mu.Unlock()
			case len(r.message.GetEvents()) == 0:
				continue
			case !slices.ContainsFunc(r.message.GetEvents(), ofNode):
				if later == nil {
					later = time.After(max(settled, time.Until(last.Add(spaced))))
				}
				continue
			}
		case <-d.changed:
		case <-later:
			compared, last = true, time.Now()
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		later = nil
		d.restoreNow(ctx)
		if err := d.publish(ctx, p, compared); err != nil {
			return err
		}
	}
}

// ofNode reports whether an event is about the machine or the policy, and not about a pod or a claim.
func ofNode(e *allocationv1.Event) bool { return e.GetMachine() != nil || e.GetPolicy() != nil }

// restoreNow is restore outside of a prepared claim. After an error, the next claim tries again.
func (d *Driver) restoreNow(ctx context.Context) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.restore(ctx); err != nil {
		d.Log.Warn("berthd may not have all prepared claims; the next claim to be prepared waits for them", "error", err)
	}
}

// publish publishes what claims can have. If the node was compared before, only the amounts may have changed since.
func (d *Driver) publish(ctx context.Context, p Publisher, compared bool) error {
	allocatable, err := d.Client.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
	if err != nil {
		return err
	}
	machine, err := d.Client.Node().GetMachine(ctx, &nodev1.GetMachineRequest{})
	if err != nil {
		return err
	}
	onePool := allocatable.GetResourceClaimsFromAllocatable()
	devices, err := d.devices(allocatable.GetResourceClaims(), machine, onePool)
	if err != nil {
		return err
	}
	if err := d.measure(allocatable.GetResourceClaims(), onePool); err != nil {
		return err
	}
	if len(devices) == 0 && d.Unrestored() == 0 && !onePool {
		d.Log.Warn("claims can have nothing: set dra.cpus and dra.memory in berthd's configuration")
	}
	twice := d.reported()
	if !compared {
		if twice, err = d.compare(ctx, allocatable, devices); err != nil {
			return err
		}
	}
	var out resourceslice.DriverResources // without a pool, slices that are there are removed
	if len(twice) == 0 && len(devices) > 0 {
		out.Pools = map[string]resourceslice.Pool{d.NodeName: {Slices: []resourceslice.Slice{{Devices: devices}}}}
	}
	if err := p.PublishResources(ctx, out); err != nil {
		return err
	}
	d.report(twice)
	return nil
}

// measure stores what claims may have, and assesses the devices.
func (d *Driver) measure(nodes []*nodev1.ClaimNode, onePool bool) error {
	pools := make(map[uint32]pool, len(nodes))
	for _, n := range nodes {
		cpus, bytes, err := amounts(n)
		if err != nil {
			return err
		}
		pools[n.GetNumaNode()] = pool{cpus, uint64(bytes)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pools, d.onePool = pools, onePool
	d.assess()
	return nil
}

// amounts reads the CPUs and the bytes of memory of a NUMA node.
func amounts(n *nodev1.ClaimNode) (cpus cpuset.Set, bytes int64, err error) {
	if cpus, err = cpuset.Parse(n.GetCpus().GetList()); err != nil {
		return cpus, 0, fmt.Errorf("CPUs of NUMA node %d: %w", n.GetNumaNode(), err)
	}
	memory, err := resource.ParseQuantity(n.GetResources()[capacityMemory])
	if err != nil {
		return cpus, 0, fmt.Errorf("memory of NUMA node %d: %w", n.GetNumaNode(), err)
	}
	return cpus, max(memory.Value(), 0), nil
}

// obstructed reports whether nothing of a NUMA node can be given to claims.
func (d *Driver) obstructed(node uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uid := range d.unrestored {
		if d.prepared[uid].uses(node) {
			return true
		}
	}
	return false
}

// devices are the NUMA nodes with CPUs and memory for claims.
func (d *Driver) devices(nodes []*nodev1.ClaimNode, machine *nodev1.GetMachineResponse, onePool bool) (out []resourceapi.Device, err error) {
	for _, n := range nodes {
		cpus, memory, err := amounts(n)
		if err != nil {
			return nil, err
		}
		step := max(int64(n.GetCpuStep()), 1)
		number, bytes := int64(cpus.Len())/step*step, memory/mebi*mebi
		if number == 0 || bytes == 0 || d.obstructed(n.GetNumaNode()) {
			continue
		}
		shared := true
		device := resourceapi.Device{
			Name:                     fmt.Sprintf("%s%d", devicePrefix, n.GetNumaNode()),
			AllowMultipleAllocations: &shared,
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				deviceattribute.StandardDeviceAttributeNUMANode: integer(int64(n.GetNumaNode())),
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
				capacityCPU:    capacity(number, step, step, step, resource.DecimalSI),
				capacityMemory: capacity(bytes, mebi, mebi, min(usualMemory, bytes), resource.BinarySI),
			},
		}
		if onePool {
			if err := mapped(&device, n.GetResources()); err != nil {
				return nil, err
			}
		}
		cores, threads := map[uint32]int{}, 0
		for _, cpu := range machine.GetCpus() {
			if cpus.Contains(int(cpu.GetCpu())) {
				cores[cpu.GetCore()]++
				device.Attributes["socket"] = integer(int64(cpu.GetSocket()))
			}
		}
		for _, of := range cores {
			threads = max(threads, of)
		}
		device.Attributes["cores"], device.Attributes["threadsPerCore"] = integer(int64(len(cores))), integer(int64(threads))
		if model := d.CPUModel; model != "" {
			model = model[:min(len(model), maxAttribute)]
			device.Attributes["cpuModel"] = resourceapi.DeviceAttribute{StringValue: &model}
		}
		out = append(out, device)
	}
	return out, nil
}

func integer(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }

// capacity is an amount of which a claim gets a multiple of the step, and at least the least.
func capacity(value, least, step, usual int64, format resource.Format) resourceapi.DeviceCapacity {
	q := func(n int64) *resource.Quantity { return resource.NewQuantity(n, format) }
	policy := &resourceapi.CapacityRequestPolicy{
		Default: q(usual), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: q(least), Max: q(value), Step: q(step)},
	}
	if least == step && value < 2*step { // the API server refuses a range without a second value
		policy = &resourceapi.CapacityRequestPolicy{Default: q(step), ValidValues: []resource.Quantity{*q(step)}}
	}
	return resourceapi.DeviceCapacity{Value: *q(value), RequestPolicy: policy}
}
