package fits

import (
	"encoding/binary"
	"encoding/hex"
	"slices"

	"github.com/cespare/xxhash/v2"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/fit"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/topology"
)

// Fit returns when pods fit on a view, and what the NUMA nodes have left there.
func Fit(free *fitv1.FreeResources, outcomes []fit.Outcome, limited bool) *fitv1.FitResponse {
	out := &fitv1.FitResponse{Free: free, SearchLimited: limited}
	for i := range outcomes {
		o := &outcomes[i]
		p := &fitv1.PodFit{
			Uid: o.Pod.UID, Namespace: o.Pod.Namespace, Name: o.Pod.Name, Fit: convert.EnumOf[fitv1.FitTime](string(o.When)),
			Reason: string(o.Verdict.Reason), Message: o.Verdict.Message,
			Moves: uint32(o.Moves), MovedBytes: o.Bytes, NumaNodes: convert.SomeNodes(o.Nodes),
		}
		out.Moves, out.MovedBytes = out.Moves+p.GetMoves(), out.MovedBytes+p.GetMovedBytes()
		switch o.When {
		case fit.Now:
			out.Now++
		case fit.AfterMoves:
			out.AfterDefragmentation++
		case fit.Later:
			out.Later++
		case fit.Never:
			out.Never++
		}
		out.Pods = append(out.Pods, p)
	}
	return out
}

// Counted selects the pods of the fingerprint and of the placement of containers.
type Counted struct {
	// Owner has the pods; empty for all agents.
	Owner string
	// Elsewhere are resources on NUMA nodes that other programs have.
	Elsewhere []string
	// Pending are pods, as NAMESPACE/NAME, that do not run yet.
	Pending []string
}

// FreeResources returns what the NUMA nodes of a view's machine have left.
func FreeResources(view *ledger.View, set *managerset.Set, devices *device.Snapshot, counted Counted) *fitv1.FreeResources {
	nodes := fit.Nodes(view, set, devices)
	onNodes := func(resource string) bool {
		return slices.Contains(counted.Elsewhere, resource) || slices.ContainsFunc(nodes, func(n fit.Node) bool {
			return slices.ContainsFunc(n.Resources, func(r fit.Resource) bool { return r.Name == resource })
		})
	}
	pods := slices.DeleteFunc(slices.Collect(fit.ExclusivePods(view, counted.Owner, onNodes)), func(p *ledger.Pod) bool {
		return slices.Contains(counted.Pending, p.Pod.Namespace+"/"+nameOf(p))
	})
	out := &fitv1.FreeResources{
		Revision:       view.Revision(),
		TopologyPolicy: string(set.Topology.Policy()), TopologyScope: string(set.Topology.Scope()),
		CpuPolicy: set.CPU.Describe().Policy, MemoryPolicy: set.Memory.Describe().Policy,
		PodsFingerprint: podsFingerprint(pods),
	}
	vectors := map[int]string{}
	if set.Topology.Policy() == topology.SingleNUMANode {
		out.ContainerPlacement, vectors = containerPlacement(view.Machine(), pods, onNodes)
	}
	for _, n := range nodes {
		node := &fitv1.NUMANode{NumaNode: uint32(n.ID), Distances: distances(view.Machine(), n.ID), ContainerVector: vectors[n.ID]}
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

// nameOf returns the name that a pod has in Kubernetes: that of the whole pod for a container that was admitted by itself.
func nameOf(p *ledger.Pod) string {
	if _, name, apart := p.Pod.ApartFrom(); apart {
		return name
	}
	return p.Pod.Name
}

// podsFingerprint computes the fingerprint of a set of pods: the XXH64 digest of the digests of all
// pods in ascending order, as little-endian numbers. The digest of a pod is that of its name, with the
// digest of its namespace as the seed. A pod of which each container was admitted by itself counts
// once.
func podsFingerprint(pods []*ledger.Pod) string {
	const format = "pfp0v001"
	var sums []uint64
	for _, p := range pods {
		h := xxhash.NewWithSeed(xxhash.Sum64String(p.Pod.Namespace))
		_, _ = h.WriteString(nameOf(p)) // never fails
		sums = append(sums, h.Sum64())
	}
	slices.Sort(sums)
	var all []byte
	for _, sum := range slices.Compact(sums) {
		all = binary.LittleEndian.AppendUint64(all, sum)
	}
	return format + hex.EncodeToString(binary.BigEndian.AppendUint64(nil, xxhash.Sum64(all)))
}
