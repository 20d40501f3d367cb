package fit_test

import (
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/managerset"
	"github.com/berthd/berth/server/internal/rpc/fit"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// TestUnfitMachine: the present configuration does not fit the machine of a state of the past.
func TestUnfitMachine(t *testing.T) {
	t.Parallel()
	l := ledgertest.OpenRecording(t, journal.Options{
		Journal: ledgertest.NewJournal(), Rules: ledger.Rules{Machine: machinetest.Build("1s4c")},
	}, history.Limits{Entries: 10}, time.Now)
	client := fitv1.NewFitServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		fitv1.RegisterFitServiceServer(s, fit.New(fit.Parts{Now: time.Now, Ledger: l,
			Present: func() (*ledger.View, *managerset.Set) { return l.View(), nil },
			Managers: func(*ledger.View) (*managerset.Set, error) {
				return nil, errdefs.Preconditionf("it does not fit the machine of that time")
			},
		}))
	}))
	_, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(ledgertest.Pod("a", "main")); return nil })
	if err != nil {
		t.Fatal(err)
	}
	then := &typesv1.Moment{Moment: &typesv1.Moment_Revision{Revision: l.View().Revision()}}
	_, fits := client.Fit(t.Context(), &fitv1.FitRequest{Pods: []*typesv1.Pod{want("small", "1", "0")}, At: then})
	_, free := client.GetFreeResources(t.Context(), &fitv1.GetFreeResourcesRequest{At: then})
	for _, err := range []error{fits, free} {
		reason := ""
		for _, d := range status.Convert(err).Details() {
			if info, ok := d.(*errdetails.ErrorInfo); ok {
				reason = info.GetReason()
			}
		}
		if status.Code(err) != codes.FailedPrecondition || reason != "PRECONDITION_FAILED" {
			t.Errorf("reason %q: %v", reason, err)
		}
	}
}
