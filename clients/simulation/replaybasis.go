package simulation

import (
	"slices"
	"sort"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// startCall is the call of a start of berthd.
const startCall = "Start"

// notKnown is recorded.basis of a verdict whose state is not known.
const notKnown = -1

// findBases sets recorded.basis of all entries: calls that overlapped were decided on states that are older than
// the one before their commit.
func (l *timeline) findBases() {
	oldest := ^uint64(0)
	var changes []int // in the order of numbers, as of revisions
	for i := range l.entries {
		e := &l.entries[i]
		oldest = min(oldest, e.Number)
		// A start has its rules before its entry is written.
		if e.Call != startCall && (len(e.changes)+len(e.unknown) > 0 || e.rules != nil) {
			changes = append(changes, i)
		}
	}
	for i := range l.entries {
		e := &l.entries[i]
		if e.basis = notKnown; e.Basis == nil || e.Basis.Entry < oldest-1 {
			continue
		}
		next := sort.Search(len(changes), func(j int) bool { return l.entries[changes[j]].Number > e.Basis.Entry })
		if e.basis = i; next < len(changes) {
			e.basis = min(i, changes[next])
		}
	}
}

// bases are the states of a replay that later verdicts were decided on, by the number of entries that led to them.
type bases struct {
	// until has the last entry that was decided on a state, and ends the states that an entry is the last one of.
	until map[int]int
	ends  map[int][]int
	views map[int]*ledger.View
}

func basesOf(l *timeline) bases {
	b := bases{until: map[int]int{}, ends: map[int][]int{}, views: map[int]*ledger.View{}}
	for i := range l.entries {
		if on := l.entries[i].basis; on != notKnown {
			b.until[on] = i
		}
	}
	for on, i := range b.until {
		b.ends[i] = append(b.ends[i], on)
	}
	return b
}

// before keeps the state before an entry, if a verdict was decided on it.
func (b *bases) before(i int, v *ledger.View) {
	if _, needed := b.until[i]; needed {
		b.views[i] = v
	}
}

// after forgets the states that no entry after this one was decided on.
func (b *bases) after(i int) {
	for _, on := range b.ends[i] {
		delete(b.views, on)
	}
}

// setBasis sets the state that an entry is decided on again. It returns false if the entry was decided on a state that is
// not known.
func (r *replay) setBasis(e *recorded) bool {
	r.on = r.view
	switch {
	case !r.asRecorded:
		return true
	case e.basis == notKnown || e.Basis.Omitted > 0:
		return false
	case !r.follows:
		return true
	}
	view := r.bases.views[e.basis]
	if view.Rules().Machine != r.view.Rules().Machine {
		view = view.Under(r.view.Rules()) // the machine that changed has changed back
	}
	on, err := e.Basis.On(view)
	if err != nil {
		return false
	}
	r.on = on
	return true
}

// keep takes what was admitted into the state of the replay, if it is free there: the state that it was decided on may be
// another one.
func (r *replay) keep(decided *ledger.View, p *ledger.Pod) {
	if r.on == r.view {
		r.view = decided
		return
	}
	d := ledger.NewDraft(r.view)
	record := *p
	record.Claims = slices.Clone(p.Claims)
	d.PutPod(&record)
	if !overlaps(d.View(), p.UID()) {
		r.view = d.View()
	}
}

// overlaps returns whether a pod holds what it cannot have in a state.
func overlaps(v *ledger.View, uid string) bool {
	return slices.ContainsFunc(check.Pod(v, uid), func(f check.Finding) bool { return f.Kind == check.Structural })
}
