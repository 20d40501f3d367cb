// Command kubelet runs cases of hack/kubeletbench with the packages of a kubelet as they are: the policies of the topology, CPU and
// memory manager with states in memory, and the device manager with plugins in the same process. The device manager has a checkpoint
// below /var/lib/kubelet; hack/kubeletbench runs the program where that is in memory and private.
//
// The managers of CPUs and memory would write a checkpoint in each Allocate, too, and collect the garbage of removed pods in each
// call. Their policies, which decide, do neither.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"

	"github.com/go-logr/logr"
	cadvisor "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"

	"github.com/berthd/berth/hack/kubeletbench/cases"
)

// Nothing is logged. A kubelet at its default level also logs all hints and the result of each merge.
var (
	logger = logr.Discard()
	ctx    = klog.NewContext(context.Background(), logger)
)

func main() {
	flag.Parse()
	klog.SetLogger(logger)
	if err := cases.Serve(os.Stdin, os.Stdout, build); err != nil {
		fmt.Fprintln(os.Stderr, "kubelet:", err)
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
	info, err := topologymanager.NewNUMAInfo(machine(c.Nodes).Topology, topologymanager.PolicyOptions{})
	if err != nil {
		return cases.Op{}, err
	}
	policy := topologymanager.NewBestEffortPolicy(info, topologymanager.PolicyOptions{})
	if c.Policy == cases.SingleNUMANode {
		policy = topologymanager.NewSingleNumaNodePolicy(info, topologymanager.PolicyOptions{})
	}
	var answers []map[string][]topologymanager.TopologyHint
	for _, list := range c.Lists {
		var hints []topologymanager.TopologyHint
		for _, h := range list {
			hints = append(hints, topologymanager.TopologyHint{NUMANodeAffinity: mask(h.Nodes), Preferred: h.Preferred})
		}
		answers = append(answers, map[string][]topologymanager.TopologyHint{"example.com/r": hints})
	}
	var best topologymanager.TopologyHint
	var admit bool
	return cases.Op{
		Do: func() error { best, admit = policy.Merge(logger, answers); return nil },
		Result: func() cases.Result {
			return cases.Result{Nodes: nodes(best.NUMANodeAffinity), Preferred: best.Preferred, Admit: admit}
		},
	}, nil
}

func mask(nodes uint64) bitmask.BitMask {
	m, _ := bitmask.NewBitMask()
	for node := range 64 {
		if nodes>>node&1 != 0 {
			_ = m.Add(node) // only numbers above 63 are refused
		}
	}
	return m
}

func nodes(m bitmask.BitMask) (set uint64) {
	if m == nil {
		return 0
	}
	for _, node := range m.GetBits() {
		set |= 1 << node
	}
	return set
}

// machine describes a machine as cAdvisor does.
func machine(nodes int) *cadvisor.MachineInfo {
	m := &cadvisor.MachineInfo{
		NumSockets: cases.Sockets, NumPhysicalCores: nodes * cases.CoresPerNode, NumCores: nodes * cases.CPUsPerNode,
		MemoryCapacity: uint64(nodes) * cases.MemoryPerNode,
	}
	for id := range nodes {
		cores := make([]cadvisor.Core, cases.CoresPerNode)
		m.Topology = append(m.Topology, cadvisor.Node{Id: id, Memory: cases.MemoryPerNode, Cores: cores})
	}
	for _, cpu := range cases.CPUs(nodes) {
		core := &m.Topology[cpu.Node].Cores[cpu.Core%cases.CoresPerNode]
		core.Id, core.SocketID = cpu.Core, cpu.Socket
		core.Threads = append(core.Threads, cpu.ID)
		core.UncoreCaches = []cadvisor.Cache{{Id: cpu.Socket, Level: 3}}
	}
	return m
}

// pod is one as the API server sends it, with its QoS class.
func pod(p cases.Pod, devices bool) *v1.Pod {
	list := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(p.CPUs), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(p.Memory, resource.BinarySI),
	}
	if devices {
		for _, r := range cases.Resources {
			list[v1.ResourceName(r)] = *resource.NewQuantity(1, resource.DecimalSI)
		}
	}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID(p.UID), Name: p.UID, Namespace: "default"},
		Spec: v1.PodSpec{Containers: []v1.Container{{
			Name: cases.Container, Resources: v1.ResourceRequirements{Requests: list, Limits: list},
		}}},
		Status: v1.PodStatus{QOSClass: v1.PodQOSGuaranteed},
	}
}
