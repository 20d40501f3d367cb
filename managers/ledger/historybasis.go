package ledger

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
)

// HistoryBasis is what a verdict was decided on: a state, and what other calls in flight had reserved on it.
type HistoryBasis struct {
	// Revision of the state.
	Revision uint64 `json:"revision"`
	// Entry is the number of the last entry that led to the state.
	Entry uint64 `json:"entry"`
	// Reserved is a list of PodBefore: the pods that were being admitted or resized, with what was reserved for
	// them. They counted as if the state had them.
	Reserved json.RawMessage `json:"reserved,omitempty"`
	// Omitted is the number of those pods if they were too large to be recorded.
	Omitted int `json:"omitted,omitempty"`
}

// largestReserved limits the recorded reservations of an entry.
const largestReserved = 64 << 10

// Pods returns the reserved pods with their claims.
func (b *HistoryBasis) Pods() ([]*Pod, error) {
	if len(b.Reserved) == 0 {
		return nil, nil
	}
	var reserved []PodBefore
	if err := json.Unmarshal(b.Reserved, &reserved); err != nil {
		return nil, errdefs.Corruptf("the reservations that a verdict counted are damaged: %w", err)
	}
	pods := make([]*Pod, 0, len(reserved))
	for _, r := range reserved {
		if r.Record == nil || r.Record.UID() != r.UID {
			return nil, errdefs.Corruptf("the reservation of pod %.80q, which a verdict counted, has no record of it", r.UID)
		}
		r.Record.Claims = r.Claims
		pods = append(pods, r.Record)
	}
	return pods, nil
}

// On returns the state that was decided on: a view of the revision, with the reservations.
func (b *HistoryBasis) On(v *View) (*View, error) {
	pods, err := b.Pods()
	if err != nil || len(pods) == 0 {
		return v, err
	}
	d := NewDraft(v)
	for _, p := range pods {
		d.PutPod(p)
	}
	return d.View(), nil
}

// Reserve sets the reserved pods.
func (b *HistoryBasis) Reserve(pods []*Pod) error {
	b.Reserved, b.Omitted = nil, 0
	if len(pods) == 0 {
		return nil
	}
	reserved := make([]PodBefore, len(pods))
	for i, p := range pods {
		reserved[i] = podBefore(p)
	}
	slices.SortFunc(reserved, func(a, b PodBefore) int { return cmp.Compare(a.UID, b.UID) })
	text, err := json.Marshal(reserved)
	switch {
	case err != nil:
		return err
	case len(text) > largestReserved:
		b.Omitted = len(pods)
	default:
		b.Reserved = text
	}
	return nil
}

// decided is what a call was decided on, before it is recorded.
type decided struct {
	revision, entry uint64
	reserved        []*Pod
}

// DecidedOn notes what a call is decided on: a view, and the reservations that it has beyond the ledger. A call
// that is decided again has the last one. It may be called on nil.
func (c *Call) DecidedOn(v *View, reserved []*Pod) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decided = &decided{v.Revision(), v.recorded, reserved}
}

// basis returns what the call was decided on; nil if that is not known.
func (c *Call) basis() (*HistoryBasis, error) {
	c.mu.Lock()
	d := c.decided
	c.mu.Unlock()
	if d == nil {
		return nil, nil
	}
	b := &HistoryBasis{Revision: d.revision, Entry: d.entry}
	return b, b.Reserve(d.reserved)
}

// behind returns the basis of an entry that is written behind so many refusals. These change nothing, so the state before
// them is the one behind them, too. Without this, it would not be known once they are dropped.
func (b *HistoryBasis) behind(before *View, refusals int) *HistoryBasis {
	if b == nil || b.Entry != before.recorded || refusals == 0 {
		return b
	}
	c := *b
	c.Entry += uint64(refusals)
	return &c
}

// payload is the size of what is needed to make the call of an entry again.
func (e *HistoryEntry) payload() int {
	n := len(e.Request)
	if e.Basis != nil {
		n += len(e.Basis.Reserved)
	}
	return n
}
