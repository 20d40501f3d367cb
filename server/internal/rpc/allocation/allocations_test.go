package allocation

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/berthd/berth/hack/allocs"
	"github.com/berthd/berth/managers/ledger"
)

// unread is a stream whose messages nobody reads.
type unread struct{ grpc.ServerStream }

func (unread) SendMsg(any) error { return nil }

// TestAllocations: a change of one pod, as an event for all streams without filters.
func TestAllocations(t *testing.T) {
	w := newWatched(t, 0)
	for i := range 100 { // one by one, so that the views have the same form in every run
		w.put(i, i+1)
	}
	old := w.ledger.View()
	changed, err := w.ledger.Update(t.Context(), func(d *ledger.Draft) error { d.RemovePod("pod-50"); return nil })
	if err != nil {
		t.Fatal(err)
	}
	h := NewHistory(1, w.Inventory)
	h.Start(old)
	allocs.AtMost(t, "Watch event", 24, func() error {
		h.Committed(old, changed)
		h.making.Lock()
		defer h.making.Unlock()
		h.catchUp(true)
		p := page{events: h.newer(old.Revision()), revision: changed.Revision()}
		return p.sendTo(unread{}, longestMessage)
	})
}
