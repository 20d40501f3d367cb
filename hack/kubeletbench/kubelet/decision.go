package main

import (
	"context"
	"fmt"
	"os"
	"time"

	cadvisor "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"github.com/berthd/berth/hack/kubeletbench/cases"
	"google.golang.org/grpc"
)

type hints = map[string][]topologymanager.TopologyHint

// cpus and memory give policies to the topology manager as hint providers. It calls the two methods that they have.
type cpus struct {
	topologymanager.HintProvider
	policy cpumanager.Policy
	state  cpustate.State
}

func (c cpus) GetTopologyHints(l klog.Logger, p *v1.Pod, ctr *v1.Container, op lifecycle.Operation) hints {
	return c.policy.GetTopologyHints(l, c.state, p, ctr, op)
}

func (c cpus) Allocate(_ context.Context, p *v1.Pod, ctr *v1.Container, op lifecycle.Operation) error {
	return c.policy.Allocate(logger, c.state, p, ctr, op)
}

type memory struct {
	topologymanager.HintProvider
	policy memorymanager.Policy
	state  memorystate.State
}

func (m memory) GetTopologyHints(l klog.Logger, p *v1.Pod, ctr *v1.Container, op lifecycle.Operation) hints {
	return m.policy.GetTopologyHints(l, m.state, p, ctr, op)
}

func (m memory) Allocate(ctx context.Context, p *v1.Pod, ctr *v1.Container, op lifecycle.Operation) error {
	return m.policy.Allocate(ctx, m.state, p, ctr, op)
}

// devices is the device manager, whose Allocate is also measured by itself.
type devices struct {
	*devicemanager.ManagerImpl
	allocate time.Duration
	pods     []*v1.Pod // the active ones
}

func (d *devices) Allocate(ctx context.Context, p *v1.Pod, ctr *v1.Container, op lifecycle.Operation) error {
	start := cases.ProcessorTime()
	err := d.ManagerImpl.Allocate(ctx, p, ctr, op)
	d.allocate += cases.ProcessorTime() - start
	return err
}

// plugin is a device plugin in the same process, without a connection.
type plugin struct {
	pluginapi.DevicePluginClient
	resource string
}

func (p plugin) API() pluginapi.DevicePluginClient { return p }
func (p plugin) Resource() string                  { return p.resource }
func (p plugin) SocketPath() string                { return p.resource }

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (plugin) Allocate(context.Context, *pluginapi.AllocateRequest, ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{}}}, nil
}

type ready struct{}

func (ready) AddSource(string) {}
func (ready) AllReady() bool   { return true }

// affinities answers the policies from the topology manager, or for the pods that are there from the beginning with their node.
type affinities struct {
	topologymanager.Manager
	node int
}

func (a *affinities) GetAffinity(l klog.Logger, uid, container string) topologymanager.TopologyHint {
	if a.node >= 0 {
		return topologymanager.TopologyHint{NUMANodeAffinity: mask(1 << a.node), Preferred: true}
	}
	return a.Manager.(topologymanager.Store).GetAffinity(l, uid, container)
}

// kubelet has the managers of one.
type kubelet struct {
	topology   topologymanager.Manager
	affinities *affinities
	cpus       cpus
	memory     memory
	devices    *devices // nil if there are none
}

func newKubelet(c cases.Case) (*kubelet, error) {
	m := machine(c.Nodes)
	manager, err := topologymanager.NewManager(logger, m.Topology, c.Policy, topologymanager.ContainerTopologyScope, nil)
	if err != nil {
		return nil, err
	}
	k := &kubelet{topology: manager, affinities: &affinities{manager, -1}}
	if c.Devices {
		if k.devices, err = newDevices(c.Nodes, m, k.affinities); err != nil {
			return nil, err
		}
		manager.AddHintProvider(logger, k.devices)
	}
	details, err := topology.Discover(logger, m)
	if err != nil {
		return nil, err
	}
	k.cpus.state = cpustate.NewMemoryState(logger)
	k.cpus.policy, err = cpumanager.NewStaticPolicy(logger, details, 1, cpuset.New(cases.ReservedCPU), k.affinities, nil)
	if err != nil {
		return nil, err
	}
	if err := k.cpus.policy.Start(logger, k.cpus.state); err != nil {
		return nil, err
	}
	k.memory.state = memorystate.NewMemoryState(logger)
	k.memory.policy, err = memorymanager.NewPolicyStatic(logger, m,
		map[int]map[v1.ResourceName]uint64{0: {v1.ResourceMemory: cases.ReservedMemory}}, k.affinities)
	if err != nil {
		return nil, err
	}
	if err := k.memory.policy.Start(logger, k.memory.state); err != nil {
		return nil, err
	}
	// The order of a kubelet.
	manager.AddHintProvider(logger, k.cpus)
	manager.AddHintProvider(logger, k.memory)
	return k, nil
}

func newDevices(nodes int, m *cadvisor.MachineInfo, store topologymanager.Store) (*devices, error) {
	// What another case left.
	if err := os.RemoveAll(pluginapi.DevicePluginPath); err != nil {
		return nil, err
	}
	manager, err := devicemanager.NewManagerImpl(logger, m.Topology, store)
	if err != nil {
		return nil, err
	}
	d := &devices{ManagerImpl: manager}
	active := func() []*v1.Pod { return d.pods }
	if err := d.Start(logger, active, ready{}, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return nil, err
	}
	for _, r := range cases.Resources {
		if err := d.PluginConnected(ctx, r, plugin{resource: r}); err != nil {
			return nil, err
		}
		var list []*pluginapi.Device
		for node := range nodes {
			for i := range cases.DevicesPerNode {
				list = append(list, &pluginapi.Device{
					ID: cases.Device(node, i), Health: pluginapi.Healthy,
					Topology: &pluginapi.TopologyInfo{Nodes: []*pluginapi.NUMANode{{ID: int64(node)}}},
				})
			}
		}
		d.PluginListAndWatchReceiver(logger, r, &pluginapi.ListAndWatchResponse{Devices: list})
	}
	return d, nil
}

// hold gives a pod what it requests on a node, as an admission does after its merge.
func (k *kubelet) hold(p *v1.Pod, node int) error {
	k.affinities.node = node
	defer func() { k.affinities.node = -1 }()
	if k.devices != nil {
		k.devices.pods = append(k.devices.pods, p)
		if err := k.devices.Allocate(ctx, p, &p.Spec.Containers[0], lifecycle.AddOperation); err != nil {
			return err
		}
	}
	if err := k.cpus.Allocate(ctx, p, &p.Spec.Containers[0], lifecycle.AddOperation); err != nil {
		return err
	}
	return k.memory.Allocate(ctx, p, &p.Spec.Containers[0], lifecycle.AddOperation)
}

func decision(c cases.Case) (cases.Op, error) {
	k, err := newKubelet(c)
	if err != nil {
		return cases.Op{}, err
	}
	for i, p := range c.Held {
		if err := k.hold(pod(p, c.Devices), i); err != nil {
			return cases.Op{}, fmt.Errorf("pod %s on node %d: %w", p.UID, i, err)
		}
	}
	p := pod(c.Pod, c.Devices)
	var verdict lifecycle.PodAdmitResult
	op := cases.Op{
		Do: func() error {
			verdict = k.topology.Admit(ctx, &lifecycle.PodAdmitAttributes{Pod: p, Operation: lifecycle.AddOperation})
			return nil
		},
		Result: func() cases.Result { return k.result(c.Pod.UID, verdict.Admit) },
		Undo:   func() error { return k.remove(p) },
	}
	if k.devices != nil {
		held := k.devices.pods
		op.Aside = &k.devices.allocate
		do, undo := op.Do, op.Undo
		op.Do = func() error {
			k.devices.pods = append(held[:len(held):len(held)], p)
			return do()
		}
		op.Undo = func() error {
			k.devices.pods = held
			k.devices.UpdateAllocatedDevices(logger)
			return undo()
		}
	}
	return op, nil
}

// result reads what the pod has got.
func (k *kubelet) result(uid string, admit bool) cases.Result {
	best := k.affinities.GetAffinity(logger, uid, cases.Container)
	r := cases.Result{Nodes: nodes(best.NUMANodeAffinity), Preferred: best.Preferred, Admit: admit}
	if set, ok := k.cpus.state.GetCPUSet(uid, cases.Container); ok {
		r.CPUs = set.String()
	}
	for _, b := range k.memory.state.GetMemoryBlocks(uid, cases.Container) {
		for _, node := range b.NUMAAffinity {
			r.Memory |= 1 << node
		}
	}
	if k.devices == nil {
		return r
	}
	given := k.devices.GetDevices(uid, cases.Container)
	for i, resource := range cases.Resources {
		for _, d := range given[resource] {
			for _, node := range d.Topology.Nodes {
				r.Devices[i] |= 1 << node.ID
			}
		}
	}
	return r
}

func (k *kubelet) remove(p *v1.Pod) error {
	uid := string(p.UID)
	k.memory.policy.RemoveContainer(logger, k.memory.state, uid, cases.Container)
	if err := k.cpus.policy.RemoveContainer(logger, k.cpus.state, uid, cases.Container); err != nil {
		return err
	}
	// The topology manager knows only containers that have started.
	k.topology.AddContainer(logger, p, &p.Spec.Containers[0], uid)
	return k.topology.RemoveContainer(logger, uid)
}
