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
		if old.root == new.root {
			return
		}
		var wasRoom, isRoom [usualRest]part[K, V] // more moves out by itself
		was, is := newRest(wasRoom[:0], old.root), newRest(isRoom[:0], new.root)
		for len(was)+len(is) > 0 {
			var same bool
			if was, is, same = skip(was, is); same {
				continue
			}
			var a, b *node[K, V]
			was, a = was.first()
			is, b = is.first()
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

// rest is what of a map has not been compared yet, the next part last. It is passed and returned by value, so that it stays on the
// stack.
type rest[K cmp.Ordered, V any] []part[K, V]

// part is a subtree, or with single its topmost node alone.
type part[K cmp.Ordered, V any] struct {
	*node[K, V]
	single bool
}

// usualRest is how many parts a rest has in a map of some ten thousand keys at most: one or two for each level.
const usualRest = 32

// newRest returns the rest of a tree, in a room without parts.
func newRest[K cmp.Ordered, V any](room rest[K, V], root *node[K, V]) rest[K, V] {
	if root == nil {
		return room
	}
	return append(room, part[K, V]{root, false})
}

// split puts the parts of the next subtree in its place.
func (r rest[K, V]) split() rest[K, V] {
	next := r[len(r)-1]
	r = r[:len(r)-1]
	if next.right != nil {
		r = append(r, part[K, V]{next.right, false})
	}
	r = append(r, part[K, V]{next.node, true})
	if next.left != nil {
		r = append(r, part[K, V]{next.left, false})
	}
	return r
}

// skip splits the next parts of two rests until they are single nodes, the larger one first, so that a subtree of both comes
// next in both at the same time. Such a one it skips, and returns true.
func skip[K cmp.Ordered, V any](r, o rest[K, V]) (_, _ rest[K, V], skipped bool) {
	for len(r) > 0 && len(o) > 0 {
		a, b := r[len(r)-1], o[len(o)-1]
		switch {
		case a == b:
			return r[:len(r)-1], o[:len(o)-1], true
		case a.single && b.single:
			return r, o, false
		case b.single || !a.single && a.size >= b.size:
			r = r.split()
		default:
			o = o.split()
		}
	}
	return r, o, false
}

// first splits the next part until it is a single node, which it returns; nil if there is none.
func (r rest[K, V]) first() (rest[K, V], *node[K, V]) {
	for len(r) > 0 && !r[len(r)-1].single {
		r = r.split()
	}
	if len(r) == 0 {
		return r, nil
	}
	return r, r[len(r)-1].node
}
