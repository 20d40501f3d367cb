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
	// known is what follows from the pods of base; it goes where base goes, and is
	// nil only where base is.
	known *derived
}

// derived is what follows from pods that do not change any more. Each part is
// worked out by the first who asks.
type derived struct {
	use      lazyUse
	order    lazyOrder
	holders  lazyHolders
	requests lazyRequests
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

// follow puts the changes into the order before them.
func (l *lazyOrder) follow(r records) {
	l.once.Do(func() {
		l.pods = make([]*Pod, 0, len(r.base)+len(r.changes))
		l.pods = slices.AppendSeq(l.pods, r.sorted())
	})
}

// lazyHolders has the pods that hold devices.
type lazyHolders struct {
	once sync.Once
	pods []*Pod
}

func (l *lazyHolders) of(base map[string]*Pod) []*Pod {
	l.once.Do(func() {
		for _, p := range base {
			if p.holdsDevices() {
				l.pods = append(l.pods, p)
			}
		}
	})
	return l.pods
}

// follow takes over who holds devices from before the changes.
func (l *lazyHolders) follow(r records) {
	l.once.Do(func() { l.pods = slices.Collect(r.holders()) })
}

func (p *Pod) holdsDevices() bool {
	return slices.ContainsFunc(p.Claims, func(c Claim) bool { return c.Devices != nil })
}

// newRecords returns records without changes. Pods may be added to base until
// the first question about what follows from them.
func newRecords(base map[string]*Pod) records {
	return records{base: base, known: new(derived)}
}

// facts returns what follows from the pods of base.
func (r records) facts() *derived {
	if r.known == nil { // an empty ledger
		return &nothing
	}
	return r.known
}

// nothing is what follows from no pods.
var nothing derived

func (r records) get(uid string) (*Pod, bool) {
	if p, ok := r.changes[uid]; ok {
		return p, p != nil
	}
	p, ok := r.base[uid]
	return p, ok
}

// same reports whether both are the same map without changes.
func (r records) same(o records) bool {
	return r.known != nil && r.known == o.known && len(r.changes)+len(o.changes) == 0
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

// holders yields, in no particular order, the records of pods that hold devices:
// they are few beside all.
func (r records) holders() iter.Seq[*Pod] {
	return func(yield func(*Pod) bool) {
		for _, p := range r.changes {
			if p != nil && p.holdsDevices() && !yield(p) {
				return
			}
		}
		for _, p := range r.facts().holders.of(r.base) {
			if _, ok := r.changes[p.UID()]; !ok && !yield(p) {
				return
			}
		}
	}
}

// sorted yields the records by uid. Nothing is sorted but the changes, which are
// few.
func (r records) sorted() iter.Seq[*Pod] {
	base := r.facts().order.of(r.base)
	if len(r.changes) == 0 {
		return slices.Values(base)
	}
	changed := sortedKeys(r.changes)
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

// list is sorted, for those who only read it.
func (r records) list() []*Pod {
	if len(r.changes) == 0 {
		return r.facts().order.of(r.base)
	}
	return slices.Collect(r.sorted())
}

// with returns the records under more changes; the map stays the caller's.
func (r records) with(changes map[string]*Pod) records {
	all := maps.Clone(r.changes)
	if all == nil {
		all = make(map[string]*Pod, len(changes))
	}
	maps.Copy(all, changes)
	return records{base: r.base, changes: all, known: r.known}
}

// flat returns the same records without changes.
func (r records) flat() records {
	if len(r.changes) == 0 {
		return records{base: r.base, known: r.known}
	}
	base := make(map[string]*Pod, len(r.base)+len(r.changes))
	for p := range r.all() {
		base[p.UID()] = p
	}
	flat := newRecords(base)
	flat.known.requests.follow(r)
	flat.known.order.follow(r)
	flat.known.holders.follow(r)
	return flat
}
