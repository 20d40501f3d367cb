// Package node serves berth.node.v1: the machine that pods are placed on. It
// changes nothing.
package node

import (
	"context"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/machine"
)

type service struct {
	nodev1.UnimplementedNodeServiceServer
	machine *machine.Topology
}

// New makes the service for a machine, which never changes while berthd runs.
func New(m *machine.Topology) nodev1.NodeServiceServer { return &service{machine: m} }

// GetMachine implements NodeService.
func (s *service) GetMachine(context.Context, *nodev1.GetMachineRequest) (*nodev1.GetMachineResponse, error) {
	snapshot, err := s.machine.Marshal()
	if err != nil {
		return nil, err
	}
	out := &nodev1.GetMachineResponse{
		OfflineCpus: s.machine.Offline().String(),
		Fingerprint: s.machine.Fingerprint(), SnapshotJson: snapshot,
	}
	for id := range s.machine.CPUs().All() {
		c, _ := s.machine.CPU(id)
		out.Cpus = append(out.Cpus, &nodev1.CPU{
			Id: int32(c.ID), Core: int32(c.Core), Socket: int32(c.Socket),
			NumaNode: int32(c.Node), UncoreCache: int32(c.Uncore),
		})
	}
	for _, n := range s.machine.Nodes() {
		out.Nodes = append(out.Nodes, s.node(n))
	}
	return out, nil
}

func (s *service) node(n machine.Node) *nodev1.NUMANode {
	out := &nodev1.NUMANode{
		Id: int32(n.ID), Cpus: s.machine.CPUsInNode(n.ID).String(),
		MemoryBytes: n.MemoryBytes, Distances: make(map[int32]int32),
	}
	for _, h := range n.HugePages {
		out.HugePages = append(out.HugePages, &nodev1.HugePages{PageSizeKib: h.SizeKiB, Count: h.Count})
	}
	for to := range s.machine.NodeMask().All() {
		if d, ok := s.machine.Distances().Between(n.ID, to); ok {
			out.Distances[int32(to)] = int32(d)
		}
	}
	return out
}
