package rpc_test

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc"
)

// TestViewAt: a request names the present, a time, or a revision; others are refused.
func TestViewAt(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	l := ledgertest.OpenRecording(t, journal.Options{
		Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("4c")},
	}, history.Limits{Entries: 9}, func() time.Time { return now })
	for _, uid := range []string{"a", "b", "c"} {
		now = now.Add(time.Hour)
		if _, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod(uid, "c")); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	at := func(t time.Time) *typesv1.Moment {
		return &typesv1.Moment{Moment: &typesv1.Moment_Time{Time: timestamppb.New(t)}}
	}
	revision := func(n uint64) *typesv1.Moment {
		return &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: n}}
	}
	for name, row := range map[string]struct {
		at   *typesv1.Moment
		pods int
		want errdefs.Class
	}{
		"now":            {nil, 3, 0},
		"a time":         {at(now.Add(-time.Minute)), 2, 0},
		"the future":     {at(now.Add(time.Minute)), 3, 0},
		"too early":      {at(now.Add(-9 * time.Hour)), 0, errdefs.NotFound},
		"a revision":     {revision(l.View().Revision() - 2), 1, 0},
		"no revision":    {revision(0), 0, errdefs.Invalid},
		"a later one":    {revision(l.View().Revision() + 1), 0, errdefs.Precondition},
		"nothing":        {&typesv1.Moment{}, 0, errdefs.Invalid},
		"no such time":   {&typesv1.Moment{Moment: &typesv1.Moment_Time{Time: &timestamppb.Timestamp{Nanos: -1}}}, 0, errdefs.Invalid},
		"absent in time": {&typesv1.Moment{Moment: &typesv1.Moment_Time{}}, 0, errdefs.Invalid},
	} {
		v, err := rpc.ViewAt(t.Context(), l, row.at)
		if (err != nil) != (row.want != 0) || err != nil && errdefs.ClassOf(err) != row.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && v.NumPods() != row.pods {
			t.Errorf("%s: %d pods, want %d", name, v.NumPods(), row.pods)
		}
	}
}
