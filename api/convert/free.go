package convert

import (
	"encoding/binary"
	"encoding/hex"
	"iter"
	"slices"

	"github.com/cespare/xxhash/v2"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
)

// FreeResources returns what the NUMA nodes of a view's machine have left. pods are those of the
// fingerprint.
func FreeResources(view *ledger.View, set *managerset.Set, nodes []fit.Node, pods iter.Seq[*ledger.Pod]) *fitv1.FreeResources {
	out := &fitv1.FreeResources{
		Revision:       view.Revision(),
		TopologyPolicy: string(set.Topology.Policy()), TopologyScope: string(set.Topology.Scope()),
		CpuPolicy: set.CPU.Describe().Policy, MemoryPolicy: set.Memory.Describe().Policy,
		PodsFingerprint: podsFingerprint(pods),
	}
	for _, n := range nodes {
		node := &fitv1.NUMANode{NumaNode: uint32(n.ID), Distances: distances(view.Machine(), n.ID)}
		for _, r := range n.Resources {
			node.Resources = append(node.Resources, &fitv1.NodeResource{
				Resource: r.Name, Capacity: r.Capacity, Allocatable: r.Allocatable, Available: r.Available, Aligned: r.Aligned,
			})
		}
		out.Nodes = append(out.Nodes, node)
	}
	return out
}

func distances(m *machine.Topology, from int) map[uint32]uint32 {
	out := map[uint32]uint32{}
	for _, n := range m.Nodes() {
		if d, known := m.Distances().Between(from, n.ID); known {
			out[uint32(n.ID)] = uint32(d)
		}
	}
	return out
}

// podsFingerprint computes the fingerprint of a set of pods: the XXH64 digest of the digests of all
// pods in ascending order, as little-endian numbers. The digest of a pod is that of its name, with the
// digest of its namespace as the seed. A pod of which each container was admitted by itself counts
// once.
func podsFingerprint(pods iter.Seq[*ledger.Pod]) string {
	const format = "pfp0v001"
	var sums []uint64
	for p := range pods {
		h := xxhash.NewWithSeed(xxhash.Sum64String(p.Pod.Namespace))
		_, _ = h.WriteString(p.Pod.Name) // never fails
		sums = append(sums, h.Sum64())
	}
	slices.Sort(sums)
	var all []byte
	for _, sum := range slices.Compact(sums) {
		all = binary.LittleEndian.AppendUint64(all, sum)
	}
	return format + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, xxhash.Sum64(all)))
}
