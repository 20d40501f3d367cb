package memory

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// family is the set of node sets that can serve a request: capable, legal and
// fitting. All resources of a request have the same family, because a container
// gets one node set for all of them.
type family struct {
	*table
	wants []want
	caps  []*capacity // of each want; nil where the machine lacks the resource
	free  []amounts   // of each want
	left  []reusable
}

// reusable is what init containers leave of a want on exactly these nodes.
type reusable struct {
	nodes numa.Mask
	want  int
	bytes int64
}

func (t *table) family(wants []want, left []reusable) *family {
	f := &family{
		table: t, wants: wants, left: left,
		caps: make([]*capacity, len(wants)), free: make([]amounts, len(wants)),
	}
	for i, w := range wants {
		f.caps[i] = t.m.find(w.resource)
		f.free[i] = t.free(f.caps[i])
	}
	return f
}

// capable tells whether the nodes would do on an idle machine.
func (f *family) capable(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if c := f.caps[i]; c == nil && w.bytes > 0 || c != nil && c.allocatable.sum(nodes) < w.bytes {
			return false
		}
	}
	return true
}

// fits tells whether the nodes have enough free, what is handed on left out.
func (f *family) fits(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if max(f.free[i].sum(nodes), 0) < w.bytes {
			return false
		}
	}
	return true
}

// fitsReused tells whether the nodes have enough free with what is handed on.
func (f *family) fitsReused(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if max(f.free[i].sum(nodes), 0)+f.reused(nodes, i) < w.bytes {
			return false
		}
	}
	return true
}

// reused is what is handed on of a want on exactly these nodes.
func (f *family) reused(nodes numa.Mask, want int) int64 {
	for _, r := range f.left {
		if r.nodes == nodes && r.want == want {
			return r.bytes
		}
	}
	return 0
}

// list returns the family of a small machine as hints in enumeration order.
func (f *family) list() []hint.Hint {
	var lacking subsetsLacking
	for i, w := range f.wants {
		switch c := f.caps[i]; {
		case c != nil:
			lacking.mark(f, i, c)
		case w.bytes > 0:
			return nil
		}
	}
	least, n := 0, 0
	var chosen [1 << listedNodes]uint8 // of the manager's subsets
	for at := range f.m.subsets {
		s := &f.m.subsets[at]
		if lacking.capacity[s.dense] {
			continue
		}
		if least == 0 {
			least = s.nodes.Len()
		}
		if (!lacking.free[s.dense] || len(f.left) > 0 && f.fitsReused(s.nodes)) && f.legal(s.nodes) {
			chosen[n] = uint8(at)
			n++
		}
	}
	if n == 0 {
		return nil
	}
	hints := make([]hint.Hint, n)
	for i, at := range chosen[:n] {
		nodes := f.m.subsets[at].nodes
		hints[i] = hint.Hint{Nodes: nodes, Preferred: nodes.Len() == least}
	}
	return hints
}

// subsetsLacking marks node sets of a small machine, by dense form: those that
// would not do on an idle machine, and those that have too little free.
type subsetsLacking struct {
	capacity, free [1 << listedNodes]bool
}

// mark marks what has too little of a want. Where every node by itself has enough
// there is nothing to mark.
func (l *subsetsLacking) mark(f *family, i int, c *capacity) {
	need := f.wants[i].bytes
	if c.least < need {
		for x, bytes := range c.subsets {
			l.capacity[x] = l.capacity[x] || bytes < need
		}
	}
	if f.everywhere(f.m.nodes, i) {
		return
	}
	var buffer [1 << listedNodes]int64
	for x, bytes := range f.m.sums(&f.free[i], buffer[:1<<len(f.m.ids)]) {
		l.free[x] = l.free[x] || max(bytes, 0) < need
	}
}

// everywhere tells whether each of some nodes by itself has enough of a want.
func (f *family) everywhere(nodes numa.Mask, want int) bool {
	for id := range nodes.All() {
		if f.free[want][id] < f.wants[want].bytes {
			return false
		}
	}
	return true
}

// best returns the hint of the family that the kubelet takes where it decides
// without the topology manager: among the sets with all nodes of base the
// narrowest. Preferred ones come first in that order by themselves, since no
// capable set is smaller than they are.
func (f *family) best(base numa.Mask) (hint.Hint, bool) {
	if f.m.subsets == nil {
		return f.search(base)
	}
	var best hint.Hint
	for _, h := range f.list() {
		if base.IsSubsetOf(h.Nodes) && (best.Nodes == 0 || h.Nodes.NarrowerThan(best.Nodes)) {
			best = h
		}
	}
	return best, best.Nodes != 0
}
