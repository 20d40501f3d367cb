package memory

import "github.com/berthd/berth/managers/numa"

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

// reusable is the part of a want that init containers leave on exactly these nodes.
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

// capable reports whether the nodes would do on an idle machine.
func (f *family) capable(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if c := f.caps[i]; c == nil && w.bytes > 0 || c != nil && c.allocatable.sum(nodes) < w.bytes {
			return false
		}
	}
	return true
}

// fits reports whether the nodes have enough free, what is handed on left out.
func (f *family) fits(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if max(f.free[i].sum(nodes), 0) < w.bytes {
			return false
		}
	}
	return true
}

// fitsReused reports whether the nodes have enough free with what is handed on.
func (f *family) fitsReused(nodes numa.Mask) bool {
	for i, w := range f.wants {
		if max(f.free[i].sum(nodes), 0)+f.reused(nodes, i) < w.bytes {
			return false
		}
	}
	return true
}

// reused is the reused part of a want on exactly these nodes.
func (f *family) reused(nodes numa.Mask, want int) int64 {
	for _, r := range f.left {
		if r.nodes == nodes && r.want == want {
			return r.bytes
		}
	}
	return 0
}

// everywhere reports whether each of some nodes by itself has enough of a want.
func (f *family) everywhere(nodes numa.Mask, want int) bool {
	for id := range nodes.All() {
		if f.free[want][id] < f.wants[want].bytes {
			return false
		}
	}
	return true
}
