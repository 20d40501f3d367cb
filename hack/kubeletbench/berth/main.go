// Command berth runs cases of hack/kubeletbench with berth's managers. A decision is a dry run of an admission with its trace, but
// without a disk or a socket.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/berthd/berth/hack/kubeletbench/cases"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

func main() {
	if err := cases.Serve(os.Stdin, os.Stdout, build); err != nil {
		fmt.Fprintln(os.Stderr, "berth:", err)
		os.Exit(1)
	}
}

func build(c cases.Case) (cases.Op, error) {
	if c.Lists == nil {
		return decision(c)
	}
	return merge(c)
}

func merge(c cases.Case) (cases.Op, error) {
	m, err := describe(c.Nodes)
	if err != nil {
		return cases.Op{}, err
	}
	manager, err := topology.New(policy(c), m.NodeMask(), m.Distances())
	if err != nil {
		return cases.Op{}, err
	}
	var replies []hint.Reply
	for i, list := range c.Lists {
		a := hint.Answer{Kind: hint.Options}
		for _, h := range list {
			a.Hints = append(a.Hints, hint.Hint{Nodes: numa.Mask(h.Nodes), Preferred: h.Preferred})
		}
		replies = append(replies, hint.Reply{
			Provider: fmt.Sprint(i), Answers: []hint.ResourceAnswer{{Resource: "example.com/r", Answer: a}},
		})
	}
	var r topology.Result
	return cases.Op{
		Do: func() error { r = manager.Merge(replies); return nil },
		Result: func() cases.Result {
			return cases.Result{Nodes: uint64(r.Affinity.Nodes), Preferred: r.Affinity.Preferred, Admit: r.Admit}
		},
	}, nil
}

func policy(c cases.Case) topology.Config {
	return topology.Config{Policy: topology.Policy(c.Policy), Scope: hint.ContainerScope}
}

func describe(nodes int) (*machine.Topology, error) {
	var s machine.Snapshot
	for _, c := range cases.CPUs(nodes) {
		core := c.Core // the lowest CPU of a core has its number
		s.CPUs = append(s.CPUs, machine.CPU{ID: c.ID, Core: core, Socket: c.Socket, Cluster: -1, Node: c.Node, Uncore: c.Socket})
	}
	for id := range nodes {
		s.Nodes = append(s.Nodes, machine.Node{ID: id, MemoryBytes: cases.MemoryPerNode})
	}
	return machine.New(s)
}

// noPlugins stands behind devices whose plugins prefer nothing.
type noPlugins struct{}

func (noPlugins) Preferred(context.Context, string, []string, []string, int) ([]string, error) {
	return nil, nil
}
func (noPlugins) Allocate(context.Context, string, []string) ([]byte, error) { return nil, nil }

// managers makes those of a case.
func managers(c cases.Case) (*managerset.Set, error) {
	m, err := describe(c.Nodes)
	if err != nil {
		return nil, err
	}
	p, err := managerset.New(managerset.Config{
		CPU: cpu.Config{Policy: cpu.PolicyStatic, ReservedCPUs: cpuset.Of(cases.ReservedCPU), TopologyPolicy: c.Policy},
		Memory: memory.Config{
			Policy:         memory.PolicyStatic,
			Reserved:       []memory.Reservation{{Node: 0, Resource: workload.Memory, Bytes: cases.ReservedMemory}},
			SystemReserved: map[workload.Resource]uint64{workload.Memory: cases.ReservedMemory},
		},
		Topology: policy(c),
	}, m)
	if err != nil {
		return nil, err
	}
	if !c.Devices {
		return p.Join(nil, nil)
	}
	inventory := device.NewInventory(nil, time.Time{})
	for _, r := range cases.Resources {
		var list []device.Device
		for node := range c.Nodes {
			for i := range cases.DevicesPerNode {
				list = append(list, device.Device{ID: cases.Device(node, i), Healthy: true, Nodes: numa.Of(node), Topology: true})
			}
		}
		inventory.Listed(inventory.Registered(r, device.Options{}, time.Time{}), list, time.Time{})
	}
	return p.Join([]hint.Entry{{Provider: device.New(inventory, noPlugins{}), Mode: hint.Required}}, nil)
}

func decision(c cases.Case) (cases.Op, error) {
	p, err := managers(c)
	if err != nil {
		return cases.Op{}, err
	}
	// Each pod is placed on the lowest node that has room, so pod i is on node i.
	trial := admission.NewTrial(admission.Config{Tries: -1}, ledger.Empty(p.Rules), p.Bus, p.Topology)
	for i, held := range c.Held {
		h := pod(held, c.Devices)
		v, err := trial.Admit(context.Background(), &h)
		if err != nil {
			return cases.Op{}, err
		}
		if a := v.Pod.Affinity(cases.Container); v.Outcome != admission.Admitted || a == nil || a.Nodes != numa.Of(i) {
			return cases.Op{}, fmt.Errorf("pod %s: %s on %v, want node %d", held.UID, v.Outcome, a, i)
		}
	}
	engine := admission.New(admission.Config{Tries: -1}, admission.Parts{
		Ledger:   ledger.New(trial.View(), nil),
		Managers: func(*ledger.View) (*hint.Bus, *topology.Manager) { return p.Bus, p.Topology },
		Environment: admission.Environment{
			Now: func() time.Time { return time.Time{} }, NewID: func() string { return "a" },
		},
	})
	request := admission.Request{Pod: pod(c.Pod, c.Devices), DryRun: true}
	var v admission.Verdict
	return cases.Op{
		Do:     func() (err error) { v, err = engine.Admit(context.Background(), request); return err },
		Result: func() cases.Result { return result(v) },
	}, nil
}

func pod(p cases.Pod, devices bool) workload.Pod {
	q := workload.Quantities{workload.CPU: int64(p.CPUs) * 1000, workload.Memory: p.Memory}
	if devices {
		for _, r := range cases.Resources {
			q[workload.Resource(r)] = 1
		}
	}
	return workload.Pod{
		UID: p.UID, Name: p.UID, Namespace: "default",
		Containers: []workload.Container{{Name: cases.Container, Requests: q, Limits: q}},
	}
}

// result reads what the pod would get.
func result(v admission.Verdict) cases.Result {
	r := cases.Result{Admit: v.Outcome == admission.Admitted}
	if !r.Admit {
		return r
	}
	if a := v.Pod.Affinity(cases.Container); a != nil {
		r.Nodes, r.Preferred = uint64(a.Nodes), a.Preferred
	}
	for _, claim := range v.Pod.Claims {
		if claim.CPUs != nil {
			r.CPUs = claim.CPUs.Set.String()
		}
		for _, b := range claim.Memory {
			r.Memory |= uint64(b.Nodes)
		}
		for i, resource := range cases.Resources {
			if claim.Resource == resource && claim.Devices != nil {
				for _, d := range claim.Devices.Devices {
					r.Devices[i] |= uint64(d.Nodes)
				}
			}
		}
	}
	return r
}
