package inspect_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/api/bundle"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// cutOff is a journal whose history cannot be read below its newest blocks.
type cutOff struct {
	*ledgertest.Journal
	blocks int
}

func (c *cutOff) ReadHistory(ctx context.Context, below string, each func(journal.Entry) bool) error {
	n := 0
	if err := c.Journal.ReadHistory(ctx, below, func(e journal.Entry) bool {
		n++
		return n <= c.blocks && each(e)
	}); err != nil || n <= c.blocks {
		return err
	}
	return errdefs.Corruptf("page 7 is damaged")
}

// TestStreamBundleOfDamagedHistory: a bundle has what can be read of the history, and the damage as
// its oldest line, also if nothing can be read.
func TestStreamBundleOfDamagedHistory(t *testing.T) {
	t.Parallel()
	for _, readable := range []int{0, 2, 100} {
		j := &cutOff{Journal: ledgertest.NewJournal(), blocks: 100}
		l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: machinetest.Build("4c")}},
			history.Limits{Entries: 16}, time.Now)
		for _, uid := range []string{"a", "b", "c"} { // each in a block of its own, with the start
			if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil }); err != nil {
				t.Fatal(err)
			}
		}
		j.blocks = readable
		client := inspectv1.NewInspectServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
			inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{
				Ledger: l, Bundle: func(context.Context) (*bundle.Bundle, error) {
					return &bundle.Bundle{About: bundle.About{Format: bundle.Format}, State: history.SnapshotOf(l.View())}, nil
				},
			}))
		}))
		stream, err := client.StreamBundle(t.Context(), &inspectv1.StreamBundleRequest{})
		if err != nil {
			t.Fatal(err)
		}
		b, err := bundle.Collect(func(yield func(*inspectv1.StreamBundleResponse, error) bool) {
			for {
				part, err := stream.Recv()
				if errors.Is(err, io.EOF) || !yield(part, err) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		want := min(readable+1, 4)
		if len(b.History) != want {
			t.Fatalf("%d blocks can be read, and the bundle has the lines %+v", readable, b.History)
		}
		for i, line := range b.History {
			if damaged := i == readable; line.Number != uint64(4-i) || (line.Damage != "") != damaged {
				t.Errorf("%d blocks can be read, and line %d is %+v", readable, i, line)
			}
		}
	}
}
