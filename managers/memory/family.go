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
	var capable, fitting [1 << listedNodes]bool
	size := 1 << len(f.m.ids)
	for x := range size {
		capable[x], fitting[x] = true, true
	}
	var buffer [1 << listedNodes]int64
	for i, w := range f.wants {
		free := f.m.sums(&f.free[i], buffer[:size])
		for x, bytes := range free {
			fitting[x] = fitting[x] && max(bytes, 0) >= w.bytes
		}
		if c := f.caps[i]; c != nil {
			for x, bytes := range c.subsets {
				capable[x] = capable[x] && bytes >= w.bytes
			}
		} else if w.bytes > 0 {
			return nil
		}
	}
	least := 0
	var hints []hint.Hint
	for _, s := range f.m.subsets {
		if !capable[s.dense] {
			continue
		}
		if least == 0 {
			least = s.nodes.Len()
		}
		if !fitting[s.dense] && (len(f.left) == 0 || !f.fitsReused(s.nodes)) || !f.legal(s.nodes) {
			continue
		}
		if hints == nil {
			hints = make([]hint.Hint, 0, size)
		}
		hints = append(hints, hint.Hint{Nodes: s.nodes, Preferred: s.nodes.Len() == least})
	}
	return hints
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
