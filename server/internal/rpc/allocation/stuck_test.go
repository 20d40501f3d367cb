package allocation_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/server/internal/rpc/allocation"
)

// stuck is a stream that breaks with a message.
type stuck struct {
	grpc.ServerStreamingServer[allocationv1.WatchResponse]
	ctx   context.Context
	most  int
	sent  int
	check func()
}

var errStuck = errors.New("nobody reads")

func (s *stuck) Context() context.Context { return s.ctx }

func (s *stuck) SendMsg(any) error { return s.Send(nil) }

func (s *stuck) Send(*allocationv1.WatchResponse) error {
	s.check()
	if s.sent++; s.sent == s.most {
		return errStuck
	}
	return nil
}

// TestWatchOfOneWhoDoesNotRead: parts of the state that a reader has not come to are not made
// yet, nothing is kept for others who come from a revision of long ago, and who looks at all pods
// has a slot then, and only then.
func TestWatchOfOneWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	b := newLazyBench(t, 1000)
	first := b.put("pod-0")
	for i := range 50 {
		b.put(fmt.Sprint("pod-", i+1))
	}
	b.history.Split(1) // each event is a message
	const most = 3
	for from, slots := range map[uint64]int{0: 1, first: 0} { // for the first part of all pods; a reader that resumes reads none
		held, taken := 0, 0
		take := func(context.Context) (func(), error) {
			held++
			taken++
			return func() { held-- }, nil
		}
		s := &stuck{ctx: b.ctx, most: most, check: func() {
			if held != 0 {
				t.Errorf("from %d: a slot is held while nobody reads", from)
			}
		}}
		service := allocation.New(allocation.Config{}, allocation.Parts{
			Slot: take, Ledger: history.Ledger{Ledger: b.ledger}, Inventory: inventory{b.inv}, History: b.history,
		})
		if err := service.Watch(&allocationv1.WatchRequest{FromRevision: from}, s); !errors.Is(err, errStuck) {
			t.Errorf("from %d: ended with %v", from, err)
		}
		if s.sent != most || held != 0 || taken != slots || b.history.Kept() != 0 {
			t.Errorf("from %d: %d messages, want %d; %d slots taken, want %d, %d held; %d kept", from, s.sent, most, taken, slots, held,
				b.history.Kept())
		}
	}
}
