package ledger

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/machine"
)

// Moment names a state of the past: by a time, or by a revision if it is not 0.
type Moment struct {
	Time     time.Time
	Revision uint64
}

// String spells the revision, or the time.
func (m Moment) String() string {
	if m.Revision != 0 {
		return fmt.Sprintf("revision %d", m.Revision)
	}
	return m.Time.UTC().Format(time.RFC3339)
}

// covers returns whether a moment is not before an entry.
func (m Moment) covers(e *HistoryEntry) bool {
	if m.Revision != 0 {
		// A refusal has the revision of its decision, which later changes may have overtaken.
		return !e.refused() && e.Revision <= m.Revision
	}
	return !e.Decided().After(m.Time)
}

// Rewinder computes earlier states from a view and the history that led to it. The entries
// are given one by one, the newest first.
type Rewinder struct {
	// View is the current state of the computation.
	View *View
	// Oldest is the last entry whose change View has; nil at the beginning.
	Oldest *HistoryEntry
	// Why is why no earlier state can be computed; empty as long as it can.
	Why string
}

// NewRewinder starts on a view.
func NewRewinder(v *View) *Rewinder { return &Rewinder{View: v} }

// Next gives the rewinder the next older entry, after which View is the state right after
// it. It returns false, and changes nothing, if that state is not known. Entries after the
// view's are ignored, except for a start: a view has its rules before the entry is written.
func (r *Rewinder) Next(e *HistoryEntry, damage error) bool {
	expected := r.View.recorded
	if r.Oldest != nil {
		expected = r.Oldest.Number - 1
	}
	switch {
	case r.Why != "":
	case r.Oldest == nil && e.Number > expected:
		return damage != nil || e.Call != startCall || r.step(e)
	case r.Oldest != nil && r.Oldest.Begins:
		r.Why = "the state before that was not recorded"
		if r.Oldest.Message == tooLarge {
			r.Why = "the change of that time was too large to be recorded"
		}
	case damage != nil:
		r.Why = damage.Error()
	case e.Number != expected:
		r.Why = fmt.Sprintf("entry %d of the history is missing: it is lost, or a user had made more changes than are recorded of one",
			expected)
	default:
		return r.step(e)
	}
	return false
}

// step undoes the entry before.
func (r *Rewinder) step(e *HistoryEntry) bool {
	if r.Oldest != nil {
		before, err := r.View.undo(r.Oldest)
		if err != nil {
			r.Why = err.Error()
			return false
		}
		r.View = before
	}
	r.Oldest = e
	return true
}

// undo returns the view before an entry, whose changes it has.
func (v *View) undo(e *HistoryEntry) (*View, error) {
	b := e.Before
	if b == nil {
		return v, nil
	}
	d := NewDraft(v)
	for i := range b.Unknown {
		set(&d.unknown, b.Unknown[i].UID, b.Unknown[i].Pod)
	}
	for i := range b.Pods {
		if b.Pods[i].Record != nil && b.Pods[i].Record.UID() != b.Pods[i].UID {
			return nil, errdefs.Corruptf("entry %d of the history has a record of another pod", e.Number)
		}
		set(&d.pods, b.Pods[i].UID, b.Pods[i].Record)
	}
	for i := range b.Bindings {
		set(&d.bindings, b.Bindings[i].ID, b.Bindings[i].Binding)
	}
	before := d.apply(v.generation)
	if e.Part { // pods of several parts may have exchanged CPUs
		before.derive()
	}
	before.facts.settle() // so that it does not lead to all later views
	if r := b.Rules; r != nil {
		m, err := r.machine(v.rules.Machine)
		if err != nil {
			return nil, fmt.Errorf("before %s: %w", e.Decided().UTC().Format(time.RFC3339), err)
		}
		before.rules = r.on(m)
		before.override = r.Override
	}
	if e.Call != startCall { // a start has no revision of its own
		before.back(e.Revision - 1)
	}
	return before, nil
}

// machine returns the machine of earlier rules.
func (r *RulesBefore) machine(later *machine.Topology) (*machine.Topology, error) {
	m := later
	if r.Topology != nil {
		var err error
		if m, err = r.Topology.Apply(later); err != nil {
			return nil, err
		}
	}
	if r.Machine != m.Fingerprint() || !r.Reservation.Offline.IsEmpty() {
		return nil, errdefs.NotFoundf("the machine was another one")
	}
	return m, nil
}

// back sets an earlier revision.
func (v *View) back(revision uint64) {
	base := v.epoch.base << epochShift
	if revision < base { // of an earlier epoch
		v.epoch.base, base = 0, 0
	}
	v.generation = revision - base
}

// At returns the pods, bindings, living pods that are not known, and rules as they were at a
// moment, without traces, leases and the answers of plugins; resources and providers are
// those of today. A moment before the oldest kept entry, or before one that is damaged, is an
// error of class NotFound that names the oldest time.
func (l *Ledger) At(ctx context.Context, m Moment) (*View, error) {
	h := &l.history
	if h.store == nil {
		return nil, errdefs.NotFoundf("berthd keeps no history: history.entries of the configuration is 0").Coded(errdefs.HistoryNotKept)
	}
	v := l.View()
	if past, ok := h.computed(v, m); ok {
		return past, nil
	}
	past, err := v.At(m, func(each func(*HistoryEntry, error) bool) error { return l.History(ctx, 0, each) })
	if err != nil {
		return nil, err
	}
	h.compute(v, m, past)
	return past, nil
}

// pasts is the number of computed states that are kept for the next call. A map of the past makes
// four calls about the same moment.
const pasts = 4

// past is a state that was computed from a view.
type past struct {
	from, view *View
	moment     Moment
}

// computed returns a kept state. After a commit none is valid.
func (h *history) computed(from *View, m Moment) (*View, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.pasts {
		if p.from == from && p.moment.Revision == m.Revision && p.moment.Time.Equal(m.Time) {
			return p.view, true
		}
	}
	return nil, false
}

// compute keeps a state.
func (h *history) compute(from *View, m Moment, view *View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pasts = slices.DeleteFunc(h.pasts, func(p past) bool { return p.from != from })
	if len(h.pasts) == pasts {
		h.pasts = slices.Delete(h.pasts, 0, 1)
	}
	h.pasts = append(h.pasts, past{from, view, m})
}

// find rewinds to a moment.
func (r *Rewinder) find(m Moment, entries func(each func(*HistoryEntry, error) bool) error) (*View, error) {
	found := false
	err := entries(func(e *HistoryEntry, damage error) bool {
		if !r.Next(e, damage) {
			return false
		}
		found = r.Oldest != nil && m.covers(r.Oldest)
		return !found
	})
	switch {
	case err != nil:
		return nil, err
	case found:
		return r.View, nil
	}
	return nil, r.notKept(m)
}

// notKept is the error about a moment before all that is kept.
func (r *Rewinder) notKept(m Moment) error {
	if r.Oldest == nil {
		return errdefs.NotFoundf("the state at %s is not kept: the history is empty", m).Coded(errdefs.HistoryNotKept)
	}
	oldest := r.Oldest.Decided().UTC().Format(time.RFC3339Nano)
	text := fmt.Sprintf("the state at %s is not kept: the oldest one is of %s, revision %d", m, oldest, r.Oldest.Revision)
	if r.Why != "" {
		text += ", because " + r.Why
	}
	return errdefs.NotFoundf("%s", text).Coded(errdefs.HistoryNotKept, "oldest_time", oldest)
}
