package machine

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

// Change describes how a machine differs from an earlier one.
type Change struct {
	// CPUsGone and CPUsCome are the CPUs that only the earlier or only the later machine has on
	// line. Moved are CPUs in another core, socket, node or uncore than before.
	CPUsGone, CPUsCome, CPUsMoved cpuset.Set
	// NodesGone and NodesCome are NUMA nodes that only one of the machines has.
	NodesGone, NodesCome numa.Mask
	// Memory lists the amounts that have changed, by node and page size.
	Memory []AmountChange
	// Other means that only what is displayed differs.
	Other bool
}

// AmountChange is a changed amount of memory on a node.
type AmountChange struct {
	Node int
	// PageKiB is the size of huge pages; 0 for memory, whose unit is bytes.
	PageKiB       uint64
	Before, After uint64
}

// memoryGrain is the largest difference of a node's memory that is no change. Kernels add and
// remove memory in blocks of at least this size; balloons and late reservations change less.
const memoryGrain = 64 << 20

// Compare returns the change from one machine to another. Names and notes are not compared, nor
// are differences of less than 64 MiB in the memory of a node.
func Compare(from, to *Topology) Change {
	c := Change{
		CPUsGone: from.cpus.Minus(to.cpus), CPUsCome: to.cpus.Minus(from.cpus),
		NodesGone: from.nodeMask.Minus(to.nodeMask), NodesCome: to.nodeMask.Minus(from.nodeMask),
	}
	var moved cpuset.Builder
	for _, now := range to.snap.CPUs {
		if was, ok := from.CPU(now.ID); ok && was != now {
			moved.Add(now.ID)
		}
	}
	c.CPUsMoved = moved.Set()
	for id := range from.nodeMask.Union(to.nodeMask).All() {
		was, _ := from.Node(id)
		now, _ := to.Node(id)
		if max(was.MemoryBytes, now.MemoryBytes)-min(was.MemoryBytes, now.MemoryBytes) >= memoryGrain {
			c.Memory = append(c.Memory, AmountChange{Node: id, Before: was.MemoryBytes, After: now.MemoryBytes})
		}
		sizes := map[uint64]bool{}
		for _, p := range slices.Concat(was.HugePages, now.HugePages) {
			if before, after := was.pages(p.SizeKiB), now.pages(p.SizeKiB); before != after && !sizes[p.SizeKiB] {
				c.Memory = append(c.Memory, AmountChange{Node: id, PageKiB: p.SizeKiB, Before: before, After: after})
			}
			sizes[p.SizeKiB] = true
		}
	}
	c.Other = c.empty() && (from.snap.Offline != to.snap.Offline || from.snap.Isolated != to.snap.Isolated ||
		from.snap.NoHZFull != to.snap.NoHZFull ||
		!reflect.DeepEqual(from.snap.Distances, to.snap.Distances) || !reflect.DeepEqual(from.snap.Counts, to.snap.Counts))
	return c
}

// pages returns the number of huge pages of a size.
func (n *Node) pages(sizeKiB uint64) uint64 {
	for _, p := range n.HugePages {
		if p.SizeKiB == sizeKiB {
			return p.Count
		}
	}
	return 0
}

func (c *Change) empty() bool {
	return c.CPUsGone.IsEmpty() && c.CPUsCome.IsEmpty() && c.CPUsMoved.IsEmpty() &&
		c.NodesGone.IsEmpty() && c.NodesCome.IsEmpty() && len(c.Memory) == 0
}

// Empty returns whether nothing differs.
func (c Change) Empty() bool { return c.empty() && !c.Other }

// Loses returns whether the later machine lacks something that pods may hold. A moved CPU is no
// loss: the threads of a core get another place when its first thread comes or goes.
func (c Change) Loses() bool {
	return !c.CPUsGone.IsEmpty() || !c.NodesGone.IsEmpty() ||
		slices.ContainsFunc(c.Memory, func(a AmountChange) bool { return a.After < a.Before })
}

// String describes the change in a sentence.
func (c Change) String() string {
	var parts []string
	add := func(some bool, format string, args ...any) {
		if some {
			parts = append(parts, fmt.Sprintf(format, args...))
		}
	}
	add(!c.CPUsGone.IsEmpty(), "CPUs %s are gone", c.CPUsGone)
	add(!c.CPUsCome.IsEmpty(), "CPUs %s are new or online again", c.CPUsCome)
	add(!c.CPUsMoved.IsEmpty(), "CPUs %s are in another place", c.CPUsMoved)
	add(!c.NodesGone.IsEmpty(), "NUMA nodes %s are gone", c.NodesGone)
	add(!c.NodesCome.IsEmpty(), "NUMA nodes %s are new", c.NodesCome)
	for _, a := range c.Memory {
		if a.PageKiB == 0 {
			add(true, "NUMA node %d has %d MiB of memory instead of %d", a.Node, a.After>>20, a.Before>>20)
		} else {
			add(true, "NUMA node %d has %d huge pages of %d KiB instead of %d", a.Node, a.After, a.PageKiB, a.Before)
		}
	}
	add(c.Other, "offline or isolated CPUs, or distances, have changed")
	return strings.Join(parts, "; ")
}

// Without returns the machine with CPUs offline, as discovery would find it. The machine must
// keep a CPU; otherwise the error is of class Invalid.
func (t *Topology) Without(cpus cpuset.Set) (*Topology, error) {
	off := cpus.Intersect(t.cpus)
	if off.IsEmpty() {
		return t, nil
	}
	s := t.Snapshot()
	s.takeOffline(off)
	return t.reduced(s)
}

// Left returns the machine without what another one lacks: its CPUs are offline, and the NUMA nodes have less memory and
// fewer huge pages. All nodes stay, so a configuration that names them still fits. It is t itself if nothing is lacking. The
// machine must keep a CPU; otherwise the error is of class Invalid.
func (t *Topology) Left(other *Topology) (*Topology, error) {
	s := t.Snapshot()
	s.takeOffline(t.cpus.Minus(other.cpus))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		left, _ := other.Node(n.ID)
		if left.MemoryBytes < n.MemoryBytes {
			s.MemoryBytes -= min(s.MemoryBytes, n.MemoryBytes-left.MemoryBytes)
			n.MemoryBytes = left.MemoryBytes
		}
		for j := range n.HugePages {
			n.HugePages[j].Count = min(n.HugePages[j].Count, left.pages(n.HugePages[j].SizeKiB))
		}
	}
	less, err := t.reduced(s)
	if err == nil && Compare(t, less).Empty() {
		return t, nil
	}
	return less, err
}

// takeOffline takes CPUs offline.
func (s *Snapshot) takeOffline(off cpuset.Set) {
	s.CPUs = slices.DeleteFunc(s.CPUs, func(c CPU) bool { return off.Contains(c.ID) })
	s.Offline = s.Offline.Union(off)
	nameCores(s.CPUs)
}

// reduced returns the machine of a snapshot that lacks something of t. Counts of t that disagree
// with its tables change by as much as the tables.
func (t *Topology) reduced(s Snapshot) (*Topology, error) {
	less, err := New(s)
	if err != nil || s.Counts == nil {
		return less, err
	}
	was, is := t.tableCounts(), less.tableCounts()
	changed := func(recorded, was, is int) int { return max(0, recorded+is-was) }
	less.counts = Counts{
		CPUs:      changed(t.counts.CPUs, was.CPUs, is.CPUs),
		Cores:     changed(t.counts.Cores, was.Cores, is.Cores),
		Sockets:   changed(t.counts.Sockets, was.Sockets, is.Sockets),
		NUMANodes: changed(t.counts.NUMANodes, was.NUMANodes, is.NUMANodes),
		Uncores:   changed(t.counts.Uncores, was.Uncores, is.Uncores),
	}
	*less.snap.Counts = less.counts
	return less, nil
}

// nameCores gives each core the lowest id of its threads.
func nameCores(cpus []CPU) {
	lowest := map[int]int{}
	for _, c := range cpus {
		if id, ok := lowest[c.Core]; !ok || c.ID < id {
			lowest[c.Core] = c.ID
		}
	}
	for i := range cpus {
		cpus[i].Core = lowest[cpus[i].Core]
	}
}

// Difference is a machine as its difference from another one, so that the history of a machine
// whose CPUs come and go stays small.
type Difference struct {
	// Same are the CPUs that both machines have in the same place; CPUs are the others.
	Same cpuset.Set `json:"same"`
	CPUs []CPU      `json:"cpus,omitempty"`
	// Nodes is nil if the nodes with their memory are the same.
	Nodes    []Node     `json:"nodes,omitempty"`
	Offline  cpuset.Set `json:"offline,omitzero"`
	Isolated cpuset.Set `json:"isolated,omitzero"`
	NoHZFull cpuset.Set `json:"nohz_full,omitzero"`
	// Distances is nil if they are the same.
	Distances   *numa.Distances `json:"distances,omitempty"`
	MemoryBytes uint64          `json:"memory_bytes,omitempty"`
	Counts      *Counts         `json:"counts,omitempty"`
}

// DifferenceOf returns a machine as its difference from another one.
func DifferenceOf(t, from *Topology) *Difference {
	s := t.Snapshot()
	d := &Difference{
		Offline: s.Offline, Isolated: s.Isolated, NoHZFull: s.NoHZFull, MemoryBytes: s.MemoryBytes, Counts: s.Counts,
	}
	var same cpuset.Builder
	for _, c := range s.CPUs {
		if other, ok := from.CPU(c.ID); ok && other == c {
			same.Add(c.ID)
		} else {
			d.CPUs = append(d.CPUs, c)
		}
	}
	d.Same = same.Set()
	if !reflect.DeepEqual(s.Nodes, from.snap.Nodes) {
		d.Nodes = s.Nodes
	}
	if !reflect.DeepEqual(s.Distances, from.snap.Distances) {
		d.Distances = &s.Distances
	}
	return d
}

// Apply returns the machine that has a difference from another one. An error is of class Corrupt:
// the difference is damaged, or is from a third machine.
func (d *Difference) Apply(from *Topology) (*Topology, error) {
	s := from.Snapshot()
	if !d.Same.IsSubsetOf(from.cpus) {
		return nil, errdefs.Corruptf("the machine has no CPUs %s", d.Same.Minus(from.cpus))
	}
	s.CPUs = slices.DeleteFunc(s.CPUs, func(c CPU) bool { return !d.Same.Contains(c.ID) })
	s.CPUs = append(s.CPUs, d.CPUs...)
	if d.Nodes != nil {
		s.Nodes = d.Nodes
	}
	if d.Distances != nil {
		s.Distances = *d.Distances
	}
	s.Offline, s.Isolated, s.NoHZFull, s.MemoryBytes, s.Counts = d.Offline, d.Isolated, d.NoHZFull, d.MemoryBytes, d.Counts
	t, err := New(s)
	if err != nil {
		return nil, errdefs.Corruptf("the difference of a machine is damaged: %w", err)
	}
	return t, nil
}
