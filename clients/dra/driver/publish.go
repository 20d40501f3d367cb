package driver

import (
	"context"
	"fmt"
	"slices"
	"sync"
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
// policy, until the context ends. After a lost connection, berthd may have lost claims. The calls of the API server do not
// delay those of berthd.
func (d *Driver) Follow(ctx context.Context, p Publisher) {
	var others sync.WaitGroup
	defer others.Wait()
	others.Go(func() { d.announce(ctx, p) })
	others.Go(func() { d.compareClaims(ctx) })
	others.Go(func() { d.keepFiles(ctx) })
	logged := ""
	for {
		answered, err := d.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		if answered {
			logged = ""
		}
		if text := err.Error(); text != logged {
			logged = text
			d.Log.Warn("devices stay as they are published, until berthd answers", "error", err)
		}
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

// follow measures with each message of a stream, until it ends. It reports whether berthd has answered.
func (d *Driver) follow(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	types := []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_MACHINE, allocationv1.EventType_EVENT_TYPE_POLICY}
	allocatable, err := d.allocatable(ctx)
	if err != nil {
		return false, err
	}
	if allocatable.GetResourceClaimsFromAllocatable() { // what pods have changes what claims can have
		types = append(types, allocationv1.EventType_EVENT_TYPE_ADDED, allocationv1.EventType_EVENT_TYPE_REMOVED,
			allocationv1.EventType_EVENT_TYPE_CHANGED)
	}
	stream, err := d.Client.Allocation().Watch(ctx, &allocationv1.WatchRequest{Types: types})
	if err != nil {
		return false, err
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
		compare := true
		select {
		case r := <-reads:
			switch {
			case r.err != nil:
				return answered, r.err
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
			compare, last = false, time.Now()
		case <-tick.C:
		case <-ctx.Done():
			return answered, ctx.Err()
		}
		later = nil
		d.restoreNow(ctx)
		if err := d.measure(ctx, compare); err != nil {
			return answered, err
		}
		if !answered {
			wake(d.answered)
		}
		answered = true
	}
}

// ofNode reports whether an event is about the machine or the policy, and not about a pod or a claim.
func ofNode(e *allocationv1.Event) bool { return e.GetMachine() != nil || e.GetPolicy() != nil }

// restoreNow is restore outside of a prepared claim. After an error, the next claim tries again.
func (d *Driver) restoreNow(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, d.limit)
	err := d.enter(limited)
	cancel()
	if err == nil {
		defer d.leave()
		err = d.restore(ctx)
	}
	if err != nil && ctx.Err() == nil {
		d.Log.Warn("berthd may not have all prepared claims; further claims are prepared only after them", "error", err)
	}
}

// measured is what claims can have, as berthd has answered.
type measured struct {
	allocatable *nodev1.GetAllocatableResponse
	devices     []resourceapi.Device
}

// allocatable reads what claims may have.
func (d *Driver) allocatable(ctx context.Context) (*nodev1.GetAllocatableResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	return d.Client.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
}

// measure reads what claims can have, assesses the devices, and has them published. compare is set if the node may have
// changed, and not only the amounts.
func (d *Driver) measure(ctx context.Context, compare bool) error {
	allocatable, err := d.allocatable(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	machine, err := d.Client.Node().GetMachine(limited, &nodev1.GetMachineRequest{})
	if err != nil {
		return err
	}
	nodes, onePool := allocatable.GetResourceClaims(), allocatable.GetResourceClaimsFromAllocatable()
	devices, err := d.devices(nodes, machine, onePool)
	if err != nil {
		return err
	}
	pools := make(map[uint32]pool, len(nodes))
	for _, n := range nodes {
		cpus, bytes, err := amounts(n)
		if err != nil {
			return err
		}
		pools[n.GetNumaNode()] = pool{cpus, uint64(bytes)}
	}
	if len(devices) == 0 && d.Unrestored() == 0 && !onePool {
		d.Log.Warn("claims can have nothing: set dra.cpus and dra.memory in berthd's configuration")
	}
	d.mu.Lock()
	d.pools, d.onePool = pools, onePool
	d.assess()
	d.wanted, d.uncompared = &measured{allocatable, devices}, d.uncompared || compare
	d.mu.Unlock()
	wake(d.measuredAgain)
	return nil
}

// wake sends to a channel that has room for one message. A message that is there will be read.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// amounts reads the CPUs and the bytes of memory of a NUMA node. A resource that claims cannot have is absent.
func amounts(n *nodev1.ClaimNode) (cpus cpuset.Set, bytes int64, err error) {
	if cpus, err = cpuset.Parse(n.GetCpus().GetList()); err != nil {
		return cpus, 0, fmt.Errorf("CPUs of NUMA node %d: %w", n.GetNumaNode(), err)
	}
	text := n.GetResources()[capacityMemory]
	if text == "" {
		return cpus, 0, nil
	}
	memory, err := resource.ParseQuantity(text)
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
func (d *Driver) devices(nodes []*nodev1.ClaimNode, machine *nodev1.GetMachineResponse, onePool bool) (out []resourceapi.Device,
	err error) {
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
		locate(device.Attributes, n.GetNumaNode(), cpus, machine)
		if model := d.CPUModel; model != "" {
			model = model[:min(len(model), maxAttribute)]
			device.Attributes["cpuModel"] = resourceapi.DeviceAttribute{StringValue: &model}
		}
		out = append(out, device)
	}
	return out, nil
}

// locate adds the cores of a device's CPUs to its attributes, and the socket of its NUMA node. A node of several sockets has none, and the
// kernel does not know each socket (-1): claims with matchAttribute do not get such a node.
func locate(attributes map[resourceapi.QualifiedName]resourceapi.DeviceAttribute, node uint32, cpus cpuset.Set,
	machine *nodev1.GetMachineResponse) {
	cores, sockets, threads := map[uint32]int{}, map[int32]bool{}, 0
	for _, cpu := range machine.GetCpus() {
		if cpu.GetNumaNode() == node {
			sockets[int32(cpu.GetSocket())] = true
		}
		if cpus.Contains(int(cpu.GetCpu())) {
			cores[cpu.GetCore()]++
			threads = max(threads, cores[cpu.GetCore()])
		}
	}
	attributes["cores"], attributes["threadsPerCore"] = integer(int64(len(cores))), integer(int64(threads))
	for socket := range sockets {
		if len(sockets) == 1 && socket >= 0 {
			attributes["socket"] = integer(int64(socket))
		}
	}
}

func integer(n int64) resourceapi.DeviceAttribute { return resourceapi.DeviceAttribute{IntValue: &n} }

// capacity is an amount. A claim gets a multiple of its step, and at least its least.
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
