package ordered

import (
	"cmp"
	"iter"
)

// Change is a key that two maps do not have alike: only one has it, or each has set
// it by itself, be it to equal values.
type Change[K cmp.Ordered, V any] struct {
	Key      K
	Old, New V
	Was, Is  bool // whether the old and the new map have the key
}

// Diff yields the changes between two maps, by key. What the maps share is passed
// over, so the time grows with the changes that lead from one to the other, and only
// with the logarithm of their size. A key that no change concerned may be among them
// too, with the same value twice: balancing the tree moves a few.
func Diff[K cmp.Ordered, V any](old, new Map[K, V]) iter.Seq[Change[K, V]] {
	return func(yield func(Change[K, V]) bool) {
		was, is := newRest(old.root), newRest(new.root)
		for len(was)+len(is) > 0 {
			if was.skip(&is) {
				continue
			}
			a, b := was.first(), is.first()
			var change Change[K, V]
			var order int
			switch {
			case a == nil:
				order = 1
			case b == nil:
				order = -1
			default:
				order = cmp.Compare(a.key, b.key)
			}
			if order <= 0 {
				change.Key, change.Old, change.Was = a.key, a.value, true
				was = was[:len(was)-1]
			}
			if order >= 0 {
				change.Key, change.New, change.Is = b.key, b.value, true
				is = is[:len(is)-1]
			}
			if !yield(change) {
				return
			}
		}
	}
}

// rest is what of a map has not been compared yet, the next part last.
type rest[K cmp.Ordered, V any] []part[K, V]

// part is a subtree, or with single its topmost node alone.
type part[K cmp.Ordered, V any] struct {
	*node[K, V]
	single bool
}

func newRest[K cmp.Ordered, V any](root *node[K, V]) rest[K, V] {
	if root == nil {
		return nil
	}
	return rest[K, V]{{root, false}}
}

// split puts the parts of the next subtree in its place.
func (r *rest[K, V]) split() {
	next := (*r)[len(*r)-1]
	*r = (*r)[:len(*r)-1]
	if next.right != nil {
		*r = append(*r, part[K, V]{next.right, false})
	}
	*r = append(*r, part[K, V]{next.node, true})
	if next.left != nil {
		*r = append(*r, part[K, V]{next.left, false})
	}
}

// skip splits the next parts until they are single nodes, the larger one first, so
// that a subtree of both comes next in both at the same time. Such a one it skips,
// and returns true.
func (r *rest[K, V]) skip(o *rest[K, V]) bool {
	for len(*r) > 0 && len(*o) > 0 {
		a, b := (*r)[len(*r)-1], (*o)[len(*o)-1]
		switch {
		case a == b:
			*r, *o = (*r)[:len(*r)-1], (*o)[:len(*o)-1]
			return true
		case a.single && b.single:
			return false
		case b.single || !a.single && a.size >= b.size:
			r.split()
		default:
			o.split()
		}
	}
	return false
}

// first returns the next node; nil if there is none.
func (r *rest[K, V]) first() *node[K, V] {
	for len(*r) > 0 && !(*r)[len(*r)-1].single {
		r.split()
	}
	if len(*r) == 0 {
		return nil
	}
	return (*r)[len(*r)-1].node
}
