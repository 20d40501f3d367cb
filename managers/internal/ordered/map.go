// Package ordered has a map that never changes: setting or deleting a key gives
// another map, which shares all but a path of logarithmic length with the first.
// Maps may be shared freely between goroutines.
//
// The map is a weight-balanced binary tree (Adams 1992) with the parameters 3 and 2,
// which Hirai and Yamamoto (2011) have proved to keep it balanced.
//
// Invariants: keys ascend from left to right; neither subtree of a node has more than
// three times as many keys as the other, unless both together have one at most; nodes
// never change once another node or a map leads to them.
package ordered

import (
	"cmp"
	"iter"
)

// Map holds values by key, in order of the keys. The zero value is empty.
type Map[K cmp.Ordered, V any] struct{ root *node[K, V] }

type node[K cmp.Ordered, V any] struct {
	left, right *node[K, V]
	size        int // with all nodes below
	key         K
	value       V
}

func (n *node[K, V]) len() int {
	if n == nil {
		return 0
	}
	return n.size
}

// Len returns the number of keys.
func (m Map[K, V]) Len() int { return m.root.len() }

// Same reports whether both are one map: none of the changes that lead from one to
// the other did anything. Equal maps that were made apart are not the same.
func (m Map[K, V]) Same(o Map[K, V]) bool { return m.root == o.root }

// Get returns the value of a key.
func (m Map[K, V]) Get(key K) (V, bool) {
	for n := m.root; n != nil; {
		switch order := cmp.Compare(key, n.key); {
		case order < 0:
			n = n.left
		case order > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var none V
	return none, false
}

// Set returns the map with a key's value put in or replaced.
func (m Map[K, V]) Set(key K, value V) Map[K, V] {
	return Map[K, V]{m.root.set(key, value)}
}

func (n *node[K, V]) set(key K, value V) *node[K, V] {
	if n == nil {
		return &node[K, V]{size: 1, key: key, value: value}
	}
	switch order := cmp.Compare(key, n.key); {
	case order < 0:
		return n.with(n.left.set(key, value), n.right)
	case order > 0:
		return n.with(n.left, n.right.set(key, value))
	}
	return &node[K, V]{n.left, n.right, n.size, key, value}
}

// Delete returns the map without a key; the same map if it has none.
func (m Map[K, V]) Delete(key K) Map[K, V] {
	if _, ok := m.Get(key); !ok {
		return m
	}
	return Map[K, V]{m.root.delete(key)}
}

// delete needs a key that is there.
func (n *node[K, V]) delete(key K) *node[K, V] {
	switch order := cmp.Compare(key, n.key); {
	case order < 0:
		return n.with(n.left.delete(key), n.right)
	case order > 0:
		return n.with(n.left, n.right.delete(key))
	case n.left == nil:
		return n.right
	case n.right == nil:
		return n.left
	case n.left.size > n.right.size:
		last := n.left
		for last.right != nil {
			last = last.right
		}
		return last.with(n.left.delete(last.key), n.right)
	default:
		first := n.right
		for first.left != nil {
			first = first.left
		}
		return first.with(n.left, n.right.delete(first.key))
	}
}

// The balance: a subtree may have heavy times as many keys as its sibling; where its
// inner subtree has less than inner times as many as the outer one, one rotation is
// enough.
const (
	heavy = 3
	inner = 2
)

// between returns a node with other subtrees, which are in balance.
func (n *node[K, V]) between(left, right *node[K, V]) *node[K, V] {
	return &node[K, V]{left, right, left.len() + right.len() + 1, n.key, n.value}
}

// with returns the node between other subtrees, of which one has gained or lost a key.
func (n *node[K, V]) with(left, right *node[K, V]) *node[K, V] {
	switch l, r := left.len(), right.len(); {
	case l+r <= 1:
	case r > heavy*l:
		if right.left.len() < inner*right.right.len() {
			return right.between(n.between(left, right.left), right.right)
		}
		top := right.left
		return top.between(n.between(left, top.left), right.between(top.right, right.right))
	case l > heavy*r:
		if left.right.len() < inner*left.left.len() {
			return left.between(left.left, n.between(left.right, right))
		}
		top := left.right
		return top.between(left.between(left.left, top.left), n.between(top.right, right))
	}
	return n.between(left, right)
}

// All yields keys and values, by key.
func (m Map[K, V]) All() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.each(yield) }
}

func (n *node[K, V]) each(yield func(K, V) bool) bool {
	return n == nil || n.left.each(yield) && yield(n.key, n.value) && n.right.each(yield)
}

// Values yields the values, by key.
func (m Map[K, V]) Values() iter.Seq[V] {
	return func(yield func(V) bool) {
		m.root.each(func(_ K, v V) bool { return yield(v) })
	}
}

// From yields what All does from a key on.
func (m Map[K, V]) From(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.from(key, yield) }
}

func (n *node[K, V]) from(key K, yield func(K, V) bool) bool {
	switch {
	case n == nil:
		return true
	case n.key < key:
		return n.right.from(key, yield)
	}
	return n.left.from(key, yield) && yield(n.key, n.value) && n.right.each(yield)
}

// Backward yields keys and values, the greatest key first.
func (m Map[K, V]) Backward() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.backward(yield) }
}

func (n *node[K, V]) backward(yield func(K, V) bool) bool {
	return n == nil || n.right.backward(yield) && yield(n.key, n.value) && n.left.backward(yield)
}

// Before yields what Backward does of the keys below one.
func (m Map[K, V]) Before(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { m.root.before(key, yield) }
}

func (n *node[K, V]) before(key K, yield func(K, V) bool) bool {
	switch {
	case n == nil:
		return true
	case n.key >= key:
		return n.left.before(key, yield)
	}
	return n.right.before(key, yield) && yield(n.key, n.value) && n.left.backward(yield)
}
