package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/memory"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memoryOracle answers from the definition of the family of node sets, for cases
// in which the reference crashes or counts wrongly.
type memoryOracle struct {
	nodes  map[int]memory.NodeState
	all    numa.Mask
	wants  map[string]uint64
	reused map[reuseKey]uint64
}

// oracle takes the request of a container, or without a name that of a
// pod with pod-level resources.
func (s memorySetup) oracle(nodes []memory.NodeState, state memoryState, pod *workload.Pod, container string) (*memoryOracle, error) {
	o := &memoryOracle{nodes: map[int]memory.NodeState{}, wants: map[string]uint64{}}
	for _, n := range nodes {
		o.nodes[n.Node] = n
		o.all = o.all.With(n.Node)
	}
	var err error
	if o.reused, err = state.handedOn(pod.UID); err != nil {
		return nil, err
	}
	f := workload.Features{
		PodLevelResources:        s.Gates.On(vector.PodLevelResources),
		PodLevelResourceManagers: s.Gates.On(vector.PodLevelResourceManagers),
	}
	var requests workload.Quantities
	whole := pod.HasPodLevel()
	switch c := pod.Container(container); {
	case pod.QoSClass(f) != workload.Guaranteed, whole && !f.PodLevelResourceManagers:
	case c == nil && whole:
		requests = pod.Resources.Requests
	case c != nil && (!whole || c.Guaranteed()):
		requests = c.Requests
	}
	for r, n := range requests {
		if memoryOrPages := r == workload.Memory || r.IsHugePages(); memoryOrPages && (n > 0 || container != "") {
			o.wants[string(r)] = uint64(n)
		}
	}
	return o, nil
}

// have sums what nodes have of a resource; zero where a node does not know it.
func (o *memoryOracle) have(nodes numa.Mask, resource string, of func(memory.ResourceState) uint64) uint64 {
	var sum uint64
	for id := range nodes.All() {
		for _, r := range o.nodes[id].Resources {
			if r.Resource == resource {
				sum += of(r)
			}
		}
	}
	return sum
}

func (o *memoryOracle) every(nodes numa.Mask, of func(memory.ResourceState) uint64, reuse bool) bool {
	for resource, bytes := range o.wants {
		have := o.have(nodes, resource, of)
		if reuse {
			have += o.reused[reuseKey{nodes, resource}]
		}
		if have < bytes {
			return false
		}
	}
	return true
}

func allocatable(r memory.ResourceState) uint64 { return r.Allocatable }
func free(r memory.ResourceState) uint64        { return r.Free }

func (o *memoryOracle) legal(nodes numa.Mask) bool {
	for id := range nodes.All() {
		n := o.nodes[id]
		switch {
		case nodes.Len() == 1 && n.Group.Len() > 1:
			return false
		case nodes.Len() > 1 && n.Blocks > 0 && (n.Group.Len() == 1 || n.Group != nodes):
			return false
		}
	}
	return true
}

// family lists the node sets that can serve the request.
func (o *memoryOracle) family() []hint.Hint {
	least := o.all.Len()
	for nodes := range numa.Subsets(o.all) {
		if o.every(nodes, allocatable, false) {
			least = min(least, nodes.Len())
		}
	}
	var out []hint.Hint
	for nodes := range numa.Subsets(o.all) {
		if o.every(nodes, allocatable, false) && o.legal(nodes) && o.every(nodes, free, true) {
			out = append(out, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least})
		}
	}
	return out
}

// unknown returns a resource that is wanted and that no node knows.
func (o *memoryOracle) unknown() string {
	for resource, bytes := range o.wants {
		if bytes > 0 && o.have(o.all, resource, func(memory.ResourceState) uint64 { return 1 }) == 0 {
			return resource
		}
	}
	return ""
}

// hints is the answer that the manager has to give.
func (o *memoryOracle) hints() vector.Hints {
	if r := o.unknown(); r != "" {
		return vector.Hints{r: []vector.Affinity{}}
	}
	family := o.family()
	if len(family) == 0 || len(o.wants) == 0 {
		return nil
	}
	out := vector.Hints{}
	for resource := range o.wants {
		for _, h := range family {
			out[resource] = append(out[resource], vector.FromHint(h))
		}
	}
	return out.Canonical()
}

// judge checks that a request is refused where nothing can serve it under the
// affinity, and else served in full on a set that can.
func (o *memoryOracle) judge(wish hint.Hint, got memoryResult) error {
	var best hint.Hint
	for _, h := range o.family() {
		if wish.Nodes.IsSubsetOf(h.Nodes) && (best.Nodes == 0 || h.Nodes.NarrowerThan(best.Nodes)) {
			best = h
		}
	}
	asIs := !wish.Any && o.every(wish.Nodes, free, false)
	nodes, possible := best.Nodes, best.Nodes != 0 && (best.Preferred || !wish.Preferred)
	if asIs {
		nodes, possible = wish.Nodes, wish.Nodes.Len() == 1 || o.legal(wish.Nodes)
	}
	if possible = possible && o.unknown() == ""; possible != got.OK {
		return fmt.Errorf("verdict %t where by definition it is %t", got.OK, possible)
	}
	if !got.OK {
		return nil
	}
	if len(got.Blocks) != len(o.wants) {
		return errors.New("not every resource is served")
	}
	for _, b := range got.Blocks {
		if b.Size != o.wants[b.Type] || !slices.Equal(b.NUMA, nodes.IDs()) {
			return fmt.Errorf("%d bytes of %s on %v instead of %d on %s", b.Size, b.Type, b.NUMA, o.wants[b.Type], nodes)
		}
	}
	return nil
}
