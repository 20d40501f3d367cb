package main

import (
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/workload"
)

func configureMemoryManager(_ *Env, in configurationIn) (out map[string]any, refusal, err error) {
	var c struct {
		memorySetup
		Policy         string `json:"policy"`
		ReservedMemory []struct {
			NUMA     int               `json:"numa"`
			Resource workload.Resource `json:"resource"`
			Bytes    uint64            `json:"bytes"`
		} `json:"reserved_memory"`
		Reservation map[workload.Resource]resource.Quantity `json:"node_allocatable_reservation"`
	}
	if err := decode(in.In, &c); err != nil {
		return nil, nil, err
	}
	topo, err := memoryMachine(c.Machine.Nodes)
	if err != nil {
		return nil, nil, err
	}
	cfg := memory.Config{Policy: c.Policy, SystemReserved: map[workload.Resource]uint64{}}
	for r, q := range c.Reservation {
		cfg.SystemReserved[r] = uint64(q.Value())
	}
	for _, r := range c.ReservedMemory {
		cfg.Reserved = append(cfg.Reserved, memory.Reservation{Node: r.NUMA, Resource: r.Resource, Bytes: r.Bytes})
	}
	_, refusal = memory.New(cfg, topo)
	return nil, refusal, nil
}

func checkMemoryState(_ *Env, in configurationIn) (out map[string]any, refusal, err error) {
	var c struct {
		memorySetup
		State memoryState `json:"state"`
	}
	if err := decode(in.In, &c); err != nil {
		return nil, nil, err
	}
	s, err := c.State.kubelet()
	if err != nil {
		return nil, err, nil
	}
	return nil, s.Check(vector.Nodes(c.Machine.Nodes), c.Reserved), nil
}

// kubelet returns a recorded state as the content of a checkpoint.
func (s memoryState) kubelet() (kubelet.MemoryState, error) {
	out := kubelet.MemoryState{
		Nodes:      map[int]kubelet.MemoryNode{},
		Containers: map[string]map[string][]kubelet.MemoryBlock{},
		Pods:       map[string][]kubelet.MemoryBlock{},
	}
	for id, node := range s.Nodes {
		group, err := kubelet.Group(id, node.Cells)
		if err != nil {
			return out, err
		}
		n := kubelet.MemoryNode{Blocks: node.Assignments, Group: group, Tables: map[string]kubelet.MemoryTable{}}
		for name, t := range node.Memory {
			n.Tables[name] = kubelet.MemoryTable(t)
		}
		out.Nodes[id] = n
	}
	blocks := func(recorded []memoryBlock) (list []kubelet.MemoryBlock) {
		for _, b := range recorded {
			list = append(list, kubelet.MemoryBlock{Nodes: b.NUMA.Mask, Resource: b.Type, Bytes: b.Size})
		}
		return list
	}
	for uid, containers := range s.Assignments {
		out.Containers[uid] = map[string][]kubelet.MemoryBlock{}
		for name, list := range containers {
			out.Containers[uid][name] = blocks(list)
		}
	}
	for uid, list := range s.PodAssignments {
		out.Pods[uid] = blocks(list)
	}
	return out, nil
}
