package convert

import (
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/ledger"
)

// Hint returns the message form of an affinity; nil for none.
func Hint(a *ledger.Affinity) *typesv1.TopologyHint {
	if a == nil {
		return nil
	}
	out := &typesv1.TopologyHint{Preferred: a.Preferred}
	if !a.Any {
		out.NumaNodes = Mask(a.Nodes)
	}
	return out
}

// Hints returns the message form of a list of affinities.
func Hints(list []ledger.Affinity) []*typesv1.TopologyHint {
	if len(list) == 0 {
		return nil
	}
	// Every answer to Admit has some of these: one piece of memory for each kind.
	out, hints, masks := make([]*typesv1.TopologyHint, len(list)), make([]typesv1.TopologyHint, len(list)),
		make([]typesv1.NUMANodeSet, len(list))
	nodes := 0
	for i := range list {
		nodes += list[i].Nodes.Len()
	}
	ids := make([]uint32, 0, nodes)
	for i := range list {
		out[i], hints[i].Preferred = &hints[i], list[i].Preferred
		if list[i].Any {
			continue
		}
		first := len(ids)
		for id := range list[i].Nodes.All() {
			ids = append(ids, uint32(id))
		}
		hints[i].NumaNodes, masks[i].Ids = &masks[i], ids[first:len(ids):len(ids)]
	}
	return out
}

// Claims returns the message form of claims. Plugins' answers stay behind: they
// are for runtimes, by Allocate.
func Claims(claims []ledger.Claim) []*typesv1.Claim {
	out := make([]*typesv1.Claim, len(claims))
	for i := range claims {
		out[i] = Claim(&claims[i])
	}
	return out
}

// Claim returns the message form of a claim; nil for none.
func Claim(c *ledger.Claim) *typesv1.Claim {
	if c == nil {
		return nil
	}
	out := &typesv1.Claim{
		PodUid: c.Owner.Pod, ContainerName: c.Owner.Container,
		Provider: c.Provider, Resource: c.Resource,
		Affinity: Hint(c.Affinity),
	}
	switch {
	case c.CPUs != nil:
		out.Payload = &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: CPUSet(c.CPUs.Set), Sharing: sharings[c.CPUs.Use]}}
	case len(c.Memory) > 0:
		m := &typesv1.MemoryClaim{Blocks: make([]*typesv1.MemoryBlock, len(c.Memory))}
		for i, b := range c.Memory {
			m.Blocks[i] = &typesv1.MemoryBlock{NumaNodes: Mask(b.Nodes), Bytes: b.Bytes}
		}
		out.Payload = &typesv1.Claim_Memory{Memory: m}
	case c.Devices != nil:
		d := &typesv1.DeviceClaim{Devices: make([]*typesv1.Device, len(c.Devices.Devices))}
		for i := range c.Devices.Devices {
			d.Devices[i] = Device(c.Devices.Devices[i])
		}
		out.Payload = &typesv1.Claim_Device{Device: d}
	case len(c.Opaque) > 0:
		out.Payload = &typesv1.Claim_Opaque{Opaque: c.Opaque}
	}
	return out
}

var sharings = map[ledger.CPUUse]typesv1.CPUSharing{
	ledger.CPUExclusive:    typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE,
	ledger.CPUPod:          typesv1.CPUSharing_CPU_SHARING_POD,
	ledger.CPUPodExclusive: typesv1.CPUSharing_CPU_SHARING_POD_EXCLUSIVE,
	ledger.CPUPodShared:    typesv1.CPUSharing_CPU_SHARING_POD_SHARED,
}

// Device returns the message form of a device; Health adds how it is.
func Device(d ledger.Device) *typesv1.Device {
	out := &typesv1.Device{Id: d.ID}
	if d.Topology {
		out.NumaNodes = Mask(d.Nodes)
	}
	return out
}
