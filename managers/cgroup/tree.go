package cgroup

import (
	"fmt"
	"maps"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// PodNodes returns the cgroups of a pod that follow from a view: its own, and those of its
// containers that berth created, with the CPUs and memory nodes on which they run. Those that a
// runtime created are left to the runtime. Parents come before their children.
func PodNodes(view *ledger.View, p *ledger.Pod, l Layout, c Config) ([]Node, error) {
	n, err := PodNode(p, l, c)
	if err != nil {
		return nil, err
	}
	nodes := []Node{n}
	for b := range view.BindingsOf(p.UID()) {
		if !b.Own || b.CgroupPath == "" {
			continue
		}
		if n, err = ContainerNode(view, b, c); err != nil {
			return nil, err
		}
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// PodNode gives the cgroup of an admitted pod.
func PodNode(p *ledger.Pod, l Layout, c Config) (Node, error) {
	name, err := l.Pod(p.QoS, p.UID())
	if err != nil {
		return Node{}, fmt.Errorf("cgroup of pod %s: %w", p.UID(), err)
	}
	values := PodValues(&p.Pod, c, !c.QuotaWithExclusiveCPUs && ExclusiveCPUs(p, c.Features))
	if _, throttled := values.Unified[fileMemoryHigh]; c.Facts.Version == V2 && p.Pod.HasPodLevel() && !throttled {
		values.Unified = maps.Clone(values.Unified)
		if values.Unified == nil {
			values.Unified = map[string]string{}
		}
		values.Unified[fileMemoryHigh] = "max" // in place of what an earlier configuration or size of the pod had set
	}
	return Node{Name: name, Values: values, Lives: true}, nil
}

// ContainerNode gives the cgroup of a bound container. The binding must have a
// path and belong to a container of an admitted pod; class Internal otherwise.
func ContainerNode(view *ledger.View, b ledger.Binding, c Config) (Node, error) {
	name := c.Facts.Driver.Parse(b.CgroupPath)
	if err := name.Check(); err != nil {
		return Node{}, fmt.Errorf("cgroup of container %s: %w", b.Owner, err)
	}
	pod, ok := view.Pod(b.Owner.Pod)
	if !ok {
		return Node{}, unknownOwner(b)
	}
	ctr := pod.Pod.Container(b.Owner.Container)
	if ctr == nil {
		return Node{}, unknownOwner(b)
	}
	return Node{Name: name, Values: AdmittedResources(view, pod, ctr, c).Values, Lives: true}, nil
}

// AdmittedResources gives what a container of an admitted pod gets, with the
// CPUs and memory nodes that the view has for it.
func AdmittedResources(view *ledger.View, pod *ledger.Pod, ctr *workload.Container, c Config) Resources {
	r := ContainerResources(&pod.Pod, ctr, c, !c.QuotaWithExclusiveCPUs && ContainerExclusiveCPUs(pod, ctr.Name))
	r.Values.Cpuset = ContainerCpuset(view, ledger.Owner{Pod: pod.UID(), Container: ctr.Name})
	return r
}

// ContainerCpuset gives where a container runs and takes memory from. Memory
// nodes are empty, meaning all, for a container that owns no memory. The kernel refuses nodes
// that the machine has lost, or that have lost their memory; without another one, a container gets all nodes with memory.
func ContainerCpuset(view *ledger.View, owner ledger.Owner) Cpuset {
	out := Cpuset{CPUs: view.RunsOn(owner)}
	if pod, ok := view.Pod(owner.Pod); ok {
		out.Mems = presentNodes(view.Machine(), pod.MemoryNodes(owner.Container))
	}
	return out
}

func presentNodes(m *machine.Topology, own numa.Mask) numa.Mask {
	all := m.MemoryNodeMask()
	if have := own.Intersect(all); own.IsEmpty() || !have.IsEmpty() {
		return have
	}
	return all
}

func unknownOwner(b ledger.Binding) error {
	return errdefs.Internalf("container id %s is bound to %s, which is not in the ledger", b.ID, b.Owner)
}
