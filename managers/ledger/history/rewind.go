package history

import (
	"fmt"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
)

// Moment names a state of the past: by a time, or by a revision if it is not 0.
type Moment struct {
	Time     time.Time
	Revision uint64
}

// String returns the revision, or the time.
func (m Moment) String() string {
	if m.Revision != 0 {
		return fmt.Sprintf("revision %d", m.Revision)
	}
	return m.Time.UTC().Format(time.RFC3339)
}

// covers returns whether a moment is not before an entry.
func (m Moment) covers(e *Entry) bool {
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
	View *ledger.View
	// Oldest is the last entry whose change View has; nil at the beginning.
	Oldest *Entry
	// Why is why no earlier state can be computed; empty as long as it can.
	Why string
}

// NewRewinder starts on a view.
func NewRewinder(v *ledger.View) *Rewinder { return &Rewinder{View: v} }

// Next gives the rewinder the next older entry, after which View is the state right after
// it. It returns false, and changes nothing, if that state is not known. Entries after the
// view's are ignored, except for a start: a view has its rules before the entry is written.
func (r *Rewinder) Next(e *Entry, damage error) bool {
	expected := r.View.Recorded()
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
func (r *Rewinder) step(e *Entry) bool {
	if r.Oldest != nil {
		before, err := undo(r.View, r.Oldest)
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
func undo(v *ledger.View, e *Entry) (*ledger.View, error) {
	b := e.Before
	if b == nil {
		return v, nil
	}
	past := ledger.Past{Content: ledger.Content{
		Pods: make(map[string]*ledger.Pod, len(b.Pods)), Unknown: make(map[string]*ledger.UnknownLivePod, len(b.Unknown)),
		Bindings: make(map[string]*ledger.Binding, len(b.Bindings)),
	}}
	for _, u := range b.Unknown {
		past.Unknown[u.UID] = u.Pod
	}
	for _, p := range b.Pods {
		if p.Record != nil && p.Record.UID() != p.UID {
			return nil, errdefs.Corruptf("entry %d of the history has a record of another pod", e.Number)
		}
		past.Pods[p.UID] = p.Record
	}
	for _, c := range b.Bindings {
		past.Bindings[c.ID] = c.Binding
	}
	past.Exchanged = e.Part // pods of several parts may have exchanged CPUs
	if past.Rules = b.Rules; b.Rules != nil {
		var err error
		if past.Machine, err = machineOf(b.Rules, v.Machine()); err != nil {
			return nil, fmt.Errorf("before %s: %w", e.Decided().UTC().Format(time.RFC3339), err)
		}
	}
	// A start has no revision of its own.
	past.Revision, past.SameRevision = e.Revision-1, e.Call == startCall
	return v.Before(&past), nil
}

// machineOf returns the machine of earlier rules.
func machineOf(r *ledger.PastRules, later *machine.Topology) (*machine.Topology, error) {
	m := later
	if r.Topology != nil {
		var err error
		if m, err = r.Topology.Apply(later); err != nil {
			return nil, err
		}
	}
	if r.Machine != m.Fingerprint() {
		return nil, errdefs.NotFoundf("the machine was another one")
	}
	return m, nil
}

// find rewinds to a moment.
func (r *Rewinder) find(m Moment, entries func(each func(*Entry, error) bool) error) (*ledger.View, error) {
	found := false
	err := entries(func(e *Entry, damage error) bool {
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
