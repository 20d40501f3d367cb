package history

import (
	"cmp"
	"encoding/json"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// largestReserved limits the recorded reservations of an entry.
const largestReserved = 64 << 10

// Pods returns the reserved pods with their claims.
func (b *Basis) Pods() ([]*ledger.Pod, error) {
	if len(b.Reserved) == 0 {
		return nil, nil
	}
	var reserved []Pod
	if err := json.Unmarshal(b.Reserved, &reserved); err != nil {
		return nil, errdefs.Corruptf("the reservations that a verdict counted are damaged: %w", err)
	}
	pods := make([]*ledger.Pod, 0, len(reserved))
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
func (b *Basis) On(v *ledger.View) (*ledger.View, error) {
	pods, err := b.Pods()
	if err != nil || len(pods) == 0 {
		return v, err
	}
	d := ledger.NewDraft(v)
	for _, p := range pods {
		d.PutPod(p)
	}
	return d.View(), nil
}

// Reserve sets the reserved pods.
func (b *Basis) Reserve(pods []*ledger.Pod) error {
	b.Reserved, b.Omitted = nil, 0
	if len(pods) == 0 {
		return nil
	}
	reserved := make([]Pod, len(pods))
	for i, p := range pods {
		reserved[i] = podOf(p)
	}
	slices.SortFunc(reserved, func(a, b Pod) int { return cmp.Compare(a.UID, b.UID) })
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

// behind returns the basis of an entry that is written behind so many refusals. These change nothing, so the state before
// them is the one behind them, too. Without this, it would not be known once they are dropped.
func (b *Basis) behind(before *ledger.View, refusals int) *Basis {
	if b == nil || b.Entry != before.Recorded() || refusals == 0 {
		return b
	}
	c := *b
	c.Entry += uint64(refusals)
	return &c
}

// payload is the size of what is needed to make the call of an entry again.
func (e *Entry) payload() int {
	n := len(e.Request)
	if e.Basis != nil {
		n += len(e.Basis.Reserved)
	}
	return n
}
