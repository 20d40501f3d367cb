package drawing

import (
	"context"
	"fmt"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
)

// mapAnswers are the answers that a map is made of.
type mapAnswers struct {
	cpu    *cpuv1.GetStateResponse
	memory *memoryv1.GetStateResponse
	device *devicev1.GetStateResponse
	list   *allocationv1.ListResponse
}

// sameRevision is how often the answers are read again until all are of one revision.
const sameRevision = 5

// MapState reads what a map shows. Pods that were admitted since a time are marked; the zero
// time marks none.
func MapState(ctx context.Context, s *command.Session, since time.Time) (nodemap.State, error) {
	node, err := s.Node().GetMachine(ctx, &nodev1.GetMachineRequest{At: s.Past})
	if err != nil {
		return nodemap.State{}, err
	}
	m, err := machine.Load(node.GetSnapshotJson())
	if err != nil {
		return nodemap.State{}, fmt.Errorf("read berthd's machine: %w", err)
	}
	var offline []machine.CPU
	for _, c := range node.GetOfflinePlaces() {
		offline = append(offline, machine.CPU{
			ID: int(c.GetCpu()), Core: int(c.GetCore()), Socket: int(c.GetSocket()), Node: int(c.GetNumaNode()),
			Uncore: int(c.GetUncoreCache()),
		})
	}
	if m, err = m.With(offline); err != nil {
		return nodemap.State{}, fmt.Errorf("read the offline CPUs of berthd's machine: %w", err)
	}
	var a mapAnswers
	for range sameRevision {
		if a, err = answersAt(ctx, s); err != nil {
			return nodemap.State{}, err
		}
		if a.agree() {
			break
		}
	}
	if !a.agree() {
		s.Warn("pods come and go too fast: parts of this map are of different revisions")
	}
	if node.GetOtherPolicy() {
		s.Warn("the policy or the configuration was another one at that time: the CPUs and memory that it reserved are shown, " +
			"its other settings are not known")
	}
	state := nodemap.State{
		Machine: m, Offline: command.Set(node.GetOfflineCpus()), Reserved: command.Set(a.cpu.GetReserved()),
		Shared: command.Set(a.cpu.GetShared()), ForClaims: command.Set(a.cpu.GetResourceClaims()),
		Memory: mapMemory(a.memory), Revision: a.list.GetRevision(),
	}
	users := command.UsersOf(a.list.GetPods())
	for _, p := range a.list.GetPods() {
		pod := MapPod(p.GetUid(), command.PodName(p), p.GetClaims(), p.GetContainers())
		pod.New = !since.IsZero() && !p.GetAdmitTime().AsTime().Before(since)
		if pod.Claim = command.IsClaim(p); pod.Claim {
			pod.UsedBy = users[p.GetUid()]
		}
		state.Pods = append(state.Pods, pod)
	}
	for _, r := range a.device.GetResources() {
		for _, d := range r.GetDevices() {
			state.Devices = append(state.Devices, mapDevice(r.GetName(), d))
		}
	}
	return state, nil
}

// mapAnswers reads each part once.
func answersAt(ctx context.Context, s *command.Session) (a mapAnswers, err error) {
	if a.cpu, err = s.CPU().GetState(ctx, &cpuv1.GetStateRequest{At: s.Past}); err != nil {
		return a, err
	}
	if a.memory, err = s.Memory().GetState(ctx, &memoryv1.GetStateRequest{At: s.Past}); err != nil {
		return a, err
	}
	if a.device, err = s.Device().GetState(ctx, &devicev1.GetStateRequest{At: s.Past}); err != nil {
		return a, err
	}
	a.list, err = s.Allocation().List(ctx, &allocationv1.ListRequest{At: s.Past})
	return a, err
}

// agree reports whether all answers have the same revision.
func (a mapAnswers) agree() bool {
	revision := a.list.GetRevision()
	return a.cpu.GetRevision() == revision && a.memory.GetRevision() == revision && a.device.GetRevision() == revision
}

// mapMemory is what NUMA nodes have; none where memory is not allocated by node.
func mapMemory(m *memoryv1.GetStateResponse) []nodemap.Memory {
	var out []nodemap.Memory
	for _, n := range m.GetNodes() {
		for _, r := range n.GetResources() {
			out = append(out, nodemap.Memory{
				Node: int(n.GetNumaNode()), Resource: table.Printable(r.GetResource()),
				// Pods cannot have taken pages either.
				Reserved:    r.GetReservedBytes() + r.GetTakenBytes(),
				Allocatable: r.GetAllocatableBytes() - min(r.GetAllocatableBytes(), r.GetTakenBytes()),
				Held:        r.GetHeldBytes(), KernelFree: r.KernelFreeBytes,
			})
		}
	}
	byNodeAndResource(out)
	return out
}

// MapPod is a pod with its own claims and its containers'.
func MapPod(uid, name string, own []*typesv1.Claim, containers []*typesv1.ContainerAllocation) nodemap.Pod {
	pod := nodemap.Pod{UID: table.Printable(uid), Name: table.Printable(name)}
	add := func(claims []*typesv1.Claim) {
		for _, c := range claims {
			if c.GetCpu() != nil {
				pod.CPUs = pod.CPUs.Union(command.Set(c.GetCpu().GetCpus()))
			}
			for _, b := range c.GetMemory().GetBlocks() {
				pod.Blocks = append(pod.Blocks, nodemap.Block{Resource: table.Printable(c.GetResource()), Nodes: Mask(b.GetNumaNodes()),
					Bytes: b.GetBytes()})
			}
		}
	}
	add(own)
	for _, c := range containers {
		add(c.GetClaims())
	}
	return pod
}

// mapDevice is a device with the pod of its first holder; an init container may have handed
// it on in the same pod.
func mapDevice(resource string, d *devicev1.DeviceState) nodemap.Device {
	out := nodemap.Device{
		Resource: table.Printable(resource), ID: table.Printable(d.GetDevice().GetId()), Nodes: Mask(d.GetDevice().GetNumaNodes()),
		Healthy: d.GetDevice().GetHealth() == typesv1.Health_HEALTH_HEALTHY,
	}
	if len(d.GetHolders()) > 0 {
		out.Pod = table.Printable(d.GetHolders()[0].GetPodUid())
	}
	return out
}

// Mask is a set of NUMA nodes; ids that no machine has are left out.
func Mask(m *typesv1.NUMANodeSet) numa.Mask {
	var out numa.Mask
	for _, id := range m.GetIds() {
		if id < numa.MaxNodes {
			out = out.With(int(id))
		}
	}
	return out
}
