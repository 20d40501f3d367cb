package memory

import (
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// table is what is free of each node, and which nodes are used together, in one
// view.
type table struct {
	m   *Manager
	use *ledger.MemoryUse
	// taken are the huge pages that others than pods with memory of the node use.
	taken []ledger.TakenPages
	// used are the nodes that have blocks.
	used numa.Mask
}

func (m *Manager) table(view *ledger.View) *table {
	t := &table{m: m, use: view.MemoryUse(), taken: view.Rules().TakenPages}
	if m.claims { // they are no part of what pods have
		t.use = view.ResourceClaimMemory()
	}
	for _, id := range m.ids {
		if t.use.Blocks[id] > 0 {
			t.used = t.used.With(id)
		}
	}
	return t
}

// find returns what the machine has of a resource, nil if nothing.
func (m *Manager) find(resource string) *capacity {
	for _, c := range m.capacities {
		if c.resource == resource {
			return c
		}
	}
	return nil
}

// held is what blocks take of a resource, by node. What is more than a node of a
// group has lies on the group's next nodes: so it is after the machine has lost
// a few pages, and for blocks of which only the size is known.
func (t *table) held(c *capacity) amounts {
	var held amounts
	bytes := t.use.Held(c.resource)
	for _, id := range t.m.ids {
		held[id] = int64(min(bytes[id], maxBytes))
	}
	for _, id := range t.m.ids {
		group := t.use.Groups[id]
		if group.Len() < 2 {
			continue
		}
		for next := range group.All() {
			excess := held[id] - c.allocatable[id]
			room := max(c.allocatable[next]-held[next], 0)
			if next > id && excess > 0 {
				moved := min(excess, room)
				held[id] -= moved
				held[next] += moved
			}
		}
	}
	return held
}

// free is what blocks and others leave of a resource, by node; nothing of one that the
// machine lacks.
func (t *table) free(c *capacity) (free amounts) {
	if c == nil {
		return free
	}
	held, taken := t.held(c), t.takenOf(c)
	for _, id := range t.m.ids {
		free[id] = c.allocatable[id] - held[id] - taken[id]
	}
	return free
}

// takenOf is what others have of a resource, by node.
func (t *table) takenOf(c *capacity) (taken amounts) {
	for _, p := range t.taken {
		if p.Resource == c.resource && t.m.nodes.Contains(p.Node) {
			taken[p.Node] = int64(min(p.Bytes, maxBytes))
		}
	}
	return taken
}

// Free returns what is free for containers on one node alone, by resource and node: nothing on a node that is used together
// with others. Nothing is returned under the policy None.
func (m *Manager) Free(view *ledger.View) (out []ledger.NodeMemory) {
	t := m.table(view)
	for _, c := range m.capacities {
		free := t.free(c)
		for id := range c.nodes.All() {
			n := ledger.NodeMemory{Node: id, Resource: c.resource, Total: uint64(c.total[id])}
			if t.legal(numa.Of(id)) {
				n.Allocatable = uint64(max(free[id], 0))
			}
			out = append(out, n)
		}
	}
	return out
}

// group returns the nodes that are used together with a node.
func (t *table) group(id int) numa.Mask {
	if t.use.Blocks[id] == 0 {
		return numa.Of(id)
	}
	return t.use.Groups[id]
}

// legal is the rule of groups: a single node may be any that is not part of a
// group of several; several nodes may be unused ones, or exactly a group.
func (t *table) legal(nodes numa.Mask) bool {
	if id, _ := nodes.Lowest(); nodes.Len() == 1 {
		return t.group(id).Len() == 1
	}
	for id := range nodes.Intersect(t.used).All() {
		if t.use.Groups[id] != nodes {
			return false
		}
	}
	return true
}

// violates is the same rule as it is applied to a decided node set: there the
// kubelet lets a single node pass.
func (t *table) violates(nodes numa.Mask) bool { return nodes.Len() > 1 && !t.legal(nodes) }

// groups lists the groups of several nodes that the rule allows to use.
func (t *table) groups() []numa.Mask {
	var out []numa.Mask
	for id := range t.used.All() {
		if g := t.use.Groups[id]; g.Len() > 1 && !slices.Contains(out, g) && t.legal(g) {
			out = append(out, g)
		}
	}
	return out
}

// NodeState tells what a NUMA node has and holds.
type NodeState struct {
	Node int
	// Blocks counts the blocks of claims that the node is part of: one for each
	// resource of each container, and of each pod with memory as a whole.
	Blocks int
	// Group are the nodes that are used together with this one, itself included.
	Group numa.Mask
	// Resources of the node, by name.
	Resources []ResourceState
}

// ResourceState counts what a NUMA node has and holds of a resource, in bytes.
type ResourceState struct {
	Resource string
	// Total of regular memory includes the huge pages, Allocatable does not.
	Total, SystemReserved, Allocatable uint64
	// Held, Taken and Free are together Allocatable. Only their sums over a group mean
	// something: a block lies anywhere on its nodes. Taken are huge pages that others than pods
	// with memory of the node use.
	Held, Taken, Free uint64
}

// asOf returns what the machine had of a resource under the rules of a view, which may be one of the past with another
// reservation.
func (m *Manager) asOf(rules ledger.Rules, c *capacity) *capacity {
	if m.claims { // the rules have what pods may have
		return c
	}
	then := *c
	for _, n := range rules.Memory {
		if n.Resource != c.resource || !c.nodes.Contains(n.Node) {
			continue
		}
		total, allocatable := int64(min(n.Total, maxBytes)), int64(min(n.Allocatable, maxBytes))
		// What pods had less, and the node has not lost, was reserved or in huge pages.
		reserved := c.reserved[n.Node] + (total - c.total[n.Node]) - (allocatable - c.allocatable[n.Node])
		if c.resource == string(workload.Memory) {
			reserved -= m.moreHugePages(rules, n.Node)
		}
		then.total[n.Node], then.allocatable[n.Node], then.reserved[n.Node] = total, allocatable, max(0, reserved)
	}
	return &then
}

// moreHugePages returns how much more of a node was in huge pages under the rules than now.
func (m *Manager) moreHugePages(rules ledger.Rules, node int) (bytes int64) {
	for _, n := range rules.Memory {
		if n.Node == node && strings.HasPrefix(n.Resource, workload.HugePagesPrefix) {
			bytes += int64(min(n.Total, maxBytes))
		}
	}
	for _, c := range m.capacities {
		if strings.HasPrefix(c.resource, workload.HugePagesPrefix) {
			bytes -= c.total[node]
		}
	}
	return bytes
}

// State returns what all nodes have and hold under the rules of the view, by node; nothing under the policy
// None.
func (m *Manager) State(view *ledger.View) []NodeState {
	t := m.table(view)
	out := make([]NodeState, len(m.ids))
	for i, id := range m.ids {
		out[i] = NodeState{Node: id, Blocks: t.use.Blocks[id], Group: t.group(id)}
	}
	rules := view.Rules()
	for _, c := range m.capacities {
		c = m.asOf(rules, c)
		free, taken := t.free(c), t.takenOf(c)
		for i, id := range m.ids {
			if !c.nodes.Contains(id) {
				continue
			}
			left := max(free[id], 0)
			others := min(taken[id], c.allocatable[id]-left)
			out[i].Resources = append(out[i].Resources, ResourceState{
				Resource:       c.resource,
				Total:          uint64(c.total[id]),
				SystemReserved: uint64(c.reserved[id]),
				Allocatable:    uint64(c.allocatable[id]),
				Held:           uint64(c.allocatable[id] - left - others),
				Taken:          uint64(others),
				Free:           uint64(left),
			})
		}
	}
	return out
}
