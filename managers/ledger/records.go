package ledger

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"sync"
)

// records are the pods of a view by uid: those of a committed view, which all
// views drawn from it share, and on top of them the changes of a draft. A view
// of a draft is taken for every container that is planned, so it must not cost a
// copy of all pods.
type records struct {
	base    map[string]*Pod
	changes map[string]*Pod // nil: removed
	// use is what the pods of base hold of memory; it goes where base goes, and is
	// nil only where base is.
	use *lazyUse
	// order has the pods of base by uid; it goes where base goes, too.
	order *lazyOrder
}

// lazyOrder is worked out by the first who asks.
type lazyOrder struct {
	once sync.Once
	pods []*Pod
}

func (l *lazyOrder) of(base map[string]*Pod) []*Pod {
	l.once.Do(func() {
		l.pods = slices.SortedFunc(maps.Values(base), func(a, b *Pod) int { return cmp.Compare(a.UID(), b.UID()) })
	})
	return l.pods
}

// newRecords returns records without changes. Pods may be added to base until
// the first question about memory or order.
func newRecords(base map[string]*Pod) records {
	return records{base: base, use: new(lazyUse), order: new(lazyOrder)}
}

func (r records) get(uid string) (*Pod, bool) {
	if p, ok := r.changes[uid]; ok {
		return p, p != nil
	}
	p, ok := r.base[uid]
	return p, ok
}

// same reports whether both are the same map without changes.
func (r records) same(o records) bool {
	return r.use != nil && r.use == o.use && len(r.changes)+len(o.changes) == 0
}

func (r records) len() int {
	n := len(r.base)
	for uid, p := range r.changes {
		if _, ok := r.base[uid]; ok {
			n--
		}
		if p != nil {
			n++
		}
	}
	return n
}

// all yields the records in no particular order.
func (r records) all() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for _, p := range r.changes {
			if p != nil && !yield(p) {
				return
			}
		}
		for uid, p := range r.base {
			if _, ok := r.changes[uid]; !ok && !yield(p) {
				return
			}
		}
	}
}

// sorted yields the records by uid. Nothing is sorted but the changes, which are
// few.
func (r records) sorted() iter.Seq[*Pod] {
	order := r.order
	if order == nil { // an empty ledger
		order = new(lazyOrder)
	}
	base := order.of(r.base)
	if len(r.changes) == 0 {
		return slices.Values(base)
	}
	changed := slices.Sorted(maps.Keys(r.changes))
	return func(yield func(*Pod) bool) {
		rest := changed
		for _, p := range base {
			for len(rest) > 0 && rest[0] < p.UID() {
				if next := r.changes[rest[0]]; next != nil && !yield(next) {
					return
				}
				rest = rest[1:]
			}
			if len(rest) > 0 && rest[0] == p.UID() {
				continue // what it is now comes with the changes
			}
			if !yield(p) {
				return
			}
		}
		for _, uid := range rest {
			if next := r.changes[uid]; next != nil && !yield(next) {
				return
			}
		}
	}
}

// with returns the records under more changes; the map stays the caller's.
func (r records) with(changes map[string]*Pod) records {
	all := maps.Clone(r.changes)
	if all == nil {
		all = make(map[string]*Pod, len(changes))
	}
	maps.Copy(all, changes)
	return records{base: r.base, changes: all, use: r.use, order: r.order}
}

// flat returns the same records without changes.
func (r records) flat() records {
	if len(r.changes) == 0 {
		return records{base: r.base, use: r.use, order: r.order}
	}
	base := make(map[string]*Pod, len(r.base)+len(r.changes))
	for p := range r.all() {
		base[p.UID()] = p
	}
	return newRecords(base)
}
