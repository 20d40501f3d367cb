package machine

import (
	"iter"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
)

// Partition is one way of grouping the CPUs of a machine: by core, by socket,
// by node or by uncore. Groups are numbered densely, 0 to Len()-1, in ascending
// order of their ids, so that an algorithm can keep its counters in a slice.
// A Partition is immutable.
type Partition struct {
	ids  []int
	sets []cpuset.Set
	lens []int
	// of is the group of a CPU by CPU id, -1 where there is no such CPU.
	of []int32
}

// newPartition groups cpus by key. size is the largest CPU id plus one.
func newPartition(cpus []CPU, size int, key func(CPU) int) Partition {
	ids := make([]int, 0, len(cpus))
	for _, cpu := range cpus {
		ids = append(ids, key(cpu))
	}
	slices.Sort(ids)
	ids = slices.Clip(slices.Compact(ids))

	p := Partition{
		ids:  ids,
		sets: make([]cpuset.Set, len(ids)),
		lens: make([]int, len(ids)),
		of:   make([]int32, size),
	}
	for i := range p.of {
		p.of[i] = -1
	}
	members := make([][]int, len(ids))
	for _, cpu := range cpus {
		i, _ := slices.BinarySearch(ids, key(cpu))
		p.of[cpu.ID] = int32(i)
		p.lens[i]++
		members[i] = append(members[i], cpu.ID)
	}
	for i, m := range members {
		p.sets[i] = cpuset.Of(m...)
	}
	return p
}

// Len returns the number of groups; all of them have at least one CPU.
func (p *Partition) Len() int { return len(p.ids) }

// ID returns the id of group i.
func (p *Partition) ID(i int) int { return p.ids[i] }

// IDs returns the ids of all groups in ascending order, the caller's to keep.
func (p *Partition) IDs() []int { return slices.Clone(p.ids) }

// CPUs returns the CPUs of group i.
func (p *Partition) CPUs(i int) cpuset.Set { return p.sets[i] }

// Size returns the number of CPUs of group i.
func (p *Partition) Size(i int) int { return p.lens[i] }

// Index returns the group of a CPU, or -1 if the machine has no such CPU.
func (p *Partition) Index(cpu int) int {
	if cpu < 0 || cpu >= len(p.of) {
		return -1
	}
	return int(p.of[cpu])
}

// Find returns the group with the given id, and false if there is none.
func (p *Partition) Find(id int) (int, bool) { return slices.BinarySearch(p.ids, id) }

// Of returns the CPUs of the group with the given id; empty if there is none.
func (p *Partition) Of(id int) cpuset.Set {
	if i, ok := p.Find(id); ok {
		return p.sets[i]
	}
	return cpuset.Set{}
}

// Touched returns the groups that have a CPU in set, in ascending order.
func (p *Partition) Touched(set cpuset.Set) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range p.sets {
			if p.sets[i].Overlaps(set) && !yield(i) {
				return
			}
		}
	}
}

// Cover returns all CPUs of all groups that have a CPU in set: with cores, the
// set and the siblings of its CPUs.
func (p *Partition) Cover(set cpuset.Set) cpuset.Set {
	var b cpuset.Builder
	for cpu := range set.All() {
		if i := p.Index(cpu); i >= 0 && !b.Contains(cpu) {
			b.AddSet(p.sets[i])
		}
	}
	return b.Set()
}
