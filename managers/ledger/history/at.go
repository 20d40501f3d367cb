package history

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// At returns the pods, bindings, living pods that are not known, and rules as they were at a
// moment before a view of the ledger, without traces, leases and the answers of plugins; resources and providers are
// those of today. A moment before the oldest kept entry, or before one that is damaged, is an
// error of class NotFound that names the oldest time.
func (h *History) At(ctx context.Context, v *ledger.View, m Moment) (*ledger.View, error) {
	if h == nil || h.store == nil {
		return nil, errdefs.NotFoundf("berthd keeps no history: history.entries of the configuration is 0").Coded(errdefs.HistoryNotKept)
	}
	if past, ok := h.computed(v, m); ok {
		return past, nil
	}
	past, err := At(v, m, func(each func(*Entry, error) bool) error { return h.Entries(ctx, 0, each) })
	if err != nil {
		return nil, err
	}
	h.compute(v, m, past)
	return past, nil
}

// Ledger is a ledger with its history; History is nil if there is none.
type Ledger struct {
	*ledger.Ledger
	*History
}

// At returns the view of a moment before the current view; see History.At.
func (l Ledger) At(ctx context.Context, m Moment) (*ledger.View, error) {
	return l.History.At(ctx, l.View(), m)
}

// pasts is the number of computed states that are kept for the next call. A map of the past makes
// five calls about the same moment.
const pasts = 4

// computed returns a kept state. After a commit none is valid.
func (h *History) computed(from *ledger.View, m Moment) (*ledger.View, bool) {
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
func (h *History) compute(from *ledger.View, m Moment, view *ledger.View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pasts = slices.DeleteFunc(h.pasts, func(p past) bool { return p.from != from })
	if len(h.pasts) == pasts {
		h.pasts = slices.Delete(h.pasts, 0, 1)
	}
	h.pasts = append(h.pasts, past{from, view, m})
}

// At returns the view as it was at a moment, from the entries that led to it, the newest first.
// Errors are those of History.At.
func At(v *ledger.View, m Moment, entries func(each func(*Entry, error) bool) error) (*ledger.View, error) {
	if m.Revision > v.Revision() {
		return nil, errdefs.Preconditionf("revision %d is not one of this ledger, which is at %d", m.Revision,
			v.Revision()).Coded(errdefs.RevisionUnknown)
	}
	return NewRewinder(v).find(m, entries)
}
