package main

import (
	"errors"
	"fmt"

	"github.com/berthd/berth/hack/conformance/vector"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// memoryOracle answers from the definition of the family of node sets, for cases
// in which the reference crashes or counts wrongly. It counts from the recorded
// machine and state alone.
type memoryOracle struct {
	state memoryState
	// allocatable and held by node and resource.
	allocatable, held map[int]map[string]uint64
	all               numa.Mask
	wants             map[string]uint64
	reused            map[reuseKey]uint64
}

// oracle takes the request of a container, or without a name that of a
// pod with pod-level resources.
func (s memorySetup) oracle(state memoryState, pod *workload.Pod, container string) *memoryOracle {
	o := &memoryOracle{state: state, allocatable: s.allocatable(state), wants: map[string]uint64{}}
	for id := range o.allocatable {
		o.all = o.all.With(id)
	}
	o.held = o.spread()
	o.reused = state.handedOn(pod.UID)
	for r, n := range exclusively(pod, container, s.Gates.Features()) {
		if memoryOrPages := r == workload.Memory || r.IsHugePages(); memoryOrPages && (n > 0 || container != "") {
			o.wants[string(r)] = uint64(n)
		}
	}
	return o
}

// allocatable returns each node's memory for pods: the amounts of the recorded state. If those
// are negative, it is the machine's memory minus huge pages and reservations, and at least 0.
func (s memorySetup) allocatable(state memoryState) map[int]map[string]uint64 {
	out := map[int]map[string]uint64{}
	if !state.wrapped() {
		for id, node := range state.Nodes {
			out[id] = map[string]uint64{}
			for resource, t := range node.Memory {
				out[id][resource] = t.Allocatable
			}
		}
		return out
	}
	for _, node := range s.Machine.Nodes {
		has := map[string]uint64{"memory": node.Memory}
		for _, p := range node.HugePages {
			bytes := p.NumPages * p.PageSizeKiB * 1024
			has[string(workload.HugePagesOf(int64(p.PageSizeKiB)*1024))] = bytes
			has["memory"] -= min(has["memory"], bytes)
		}
		for resource, bytes := range s.Reserved[node.ID] {
			has[resource] -= min(has[resource], bytes)
		}
		out[node.ID] = has
	}
	return out
}

// spread returns the held amounts of the state. An amount that exceeds a node of a group is moved
// to the group's next nodes.
func (o *memoryOracle) spread() map[int]map[string]uint64 {
	held := map[int]map[string]uint64{}
	for id := range o.all.All() {
		held[id] = map[string]uint64{}
		for resource, t := range o.state.Nodes[id].Memory {
			held[id][resource] = t.Reserved
		}
	}
	for id := range o.all.All() {
		for resource, bytes := range held[id] {
			excess := bytes - min(bytes, o.allocatable[id][resource])
			for next := range numa.Of(o.state.Nodes[id].Cells...).All() {
				if room := o.allocatable[next][resource]; next > id && o.state.Nodes[id].Assignments > 0 {
					moved := min(excess, room-min(room, held[next][resource]))
					held[id][resource] -= moved
					held[next][resource] += moved
					excess -= moved
				}
			}
		}
	}
	return held
}

// capable reports whether nodes would do on an idle machine.
func (o *memoryOracle) capable(nodes numa.Mask) bool {
	for resource, bytes := range o.wants {
		if total, _ := o.have(nodes, resource); total < bytes {
			return false
		}
	}
	return true
}

// fits reports whether nodes have enough free; with reuse, what init containers left
// on exactly these nodes counts as free.
func (o *memoryOracle) fits(nodes numa.Mask, reuse bool) bool {
	for resource, bytes := range o.wants {
		_, free := o.have(nodes, resource)
		if reuse {
			free += o.reused[reuseKey{nodes, resource}]
		}
		if free < bytes {
			return false
		}
	}
	return true
}

// have sums what nodes have of a resource, and what of it is free: no less than
// nothing on the whole.
func (o *memoryOracle) have(nodes numa.Mask, resource string) (total, free uint64) {
	var held uint64
	for id := range nodes.All() {
		total += o.allocatable[id][resource]
		held += o.held[id][resource]
	}
	return total, total - min(total, held)
}

// legal reports whether the nodes may be used together.
func (o *memoryOracle) legal(nodes numa.Mask) bool {
	for id := range nodes.All() {
		n := o.state.Nodes[id]
		group := numa.Of(id)
		if n.Assignments > 0 {
			group = numa.Of(n.Cells...)
		}
		switch {
		case nodes.Len() == 1 && group.Len() > 1:
			return false
		case nodes.Len() > 1 && n.Assignments > 0 && (group.Len() == 1 || group != nodes):
			return false
		}
	}
	return true
}

// family lists the node sets that can serve the request.
func (o *memoryOracle) family() []hint.Hint {
	least := o.all.Len()
	for nodes := range numa.Subsets(o.all) {
		if o.capable(nodes) {
			least = min(least, nodes.Len())
		}
	}
	var out []hint.Hint
	for nodes := range numa.Subsets(o.all) {
		if o.capable(nodes) && o.legal(nodes) && o.fits(nodes, true) {
			out = append(out, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least})
		}
	}
	return out
}

// unknown returns a requested resource that no node has.
func (o *memoryOracle) unknown() string {
	for resource, bytes := range o.wants {
		known := false
		for id := range o.all.All() {
			_, has := o.allocatable[id][resource]
			known = known || has
		}
		if bytes > 0 && !known {
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

// tables checks the tables after an operation: allocatable equals the nodes' amounts, and free is
// the rest that is not held.
func (o *memoryOracle) tables(after memoryState) error {
	for id, node := range after.Nodes {
		for resource, t := range node.Memory {
			has := o.allocatable[id][resource]
			if t.Allocatable != has || t.Free != has-min(has, t.Reserved) {
				return fmt.Errorf("node %d has %d bytes of %s for pods, and %+v is noted", id, has, resource, t)
			}
		}
	}
	return nil
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
	asIs := !wish.Any && o.fits(wish.Nodes, false)
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
		if b.Size != o.wants[b.Type] || b.NUMA.Mask != nodes {
			return fmt.Errorf("%d bytes of %s on %v instead of %d on %s", b.Size, b.Type, b.NUMA, o.wants[b.Type], nodes)
		}
	}
	return nil
}
