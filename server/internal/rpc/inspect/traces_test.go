package inspect_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// TestListTraces: traces of rejected pods too, the newest first, filtered, in pages of any
// size, without steps. A trace that is recorded between two pages changes none of them.
func TestListTraces(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	record := func(n int) {
		_, err := l.Update(t.Context(), func(d *ledger.Draft) error {
			tr := &ledger.Trace{
				AdmissionID: fmt.Sprint("id-", n), Pod: fmt.Sprint("u", n%3), Namespace: "default", Name: fmt.Sprint("pod-", n%3),
				Admitted: n%2 == 0, Steps: []ledger.Step{{Kind: ledger.StepNoted}}, Suggestions: []ledger.Suggestion{{Text: "s"}},
			}
			if !tr.Admitted {
				tr.Reason = "TopologyAffinityError"
			}
			d.PutTrace(tr)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for n := range 10 {
		record(n)
	}
	client := inspectv1.NewInspectServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{Ledger: history.Ledger{Ledger: l}}))
	}))
	for name, row := range map[string]struct {
		req  *inspectv1.ListTracesRequest
		want string
	}{
		"all":       {&inspectv1.ListTracesRequest{}, "9 8 7 6 5 4 3 2 1 0"},
		"refused":   {&inspectv1.ListTracesRequest{Refused: true}, "9 7 5 3 1"},
		"reason":    {&inspectv1.ListTracesRequest{Reason: "TopologyAffinityError", PodUid: "u1"}, "7 1"},
		"name":      {&inspectv1.ListTracesRequest{Namespace: "default", Name: "pod-2"}, "8 5 2"},
		"nothing":   {&inspectv1.ListTracesRequest{Namespace: "away"}, ""},
		"pages":     {&inspectv1.ListTracesRequest{PageSize: 3}, "9 8 7 | 6 5 4 | 3 2 1 | 0"},
		"two pages": {&inspectv1.ListTracesRequest{PageSize: 5}, "9 8 7 6 5 | 4 3 2 1 0"},
		"filtered":  {&inspectv1.ListTracesRequest{PageSize: 2, Refused: true}, "9 7 | 5 3 | 1"},
	} {
		var pages []string
		for req := row.req; ; {
			got, err := client.ListTraces(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			var page []string
			for _, tr := range got.GetTraces() {
				if len(tr.GetSteps())+len(tr.GetSuggestions()) > 0 {
					t.Errorf("%s: a trace with steps", name)
				}
				page = append(page, strings.TrimPrefix(tr.GetAdmissionId(), "id-"))
			}
			pages = append(pages, strings.Join(page, " "))
			if req.PageToken = got.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		if got := strings.Join(pages, " | "); got != row.want {
			t.Errorf("%s: got %q, want %q", name, got, row.want)
		}
	}
	first, err := client.ListTraces(t.Context(), &inspectv1.ListTracesRequest{PageSize: 9})
	if err != nil {
		t.Fatal(err)
	}
	record(10)
	second, err := client.ListTraces(t.Context(), &inspectv1.ListTracesRequest{PageSize: 9, PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetTraces()) != 1 || second.GetTraces()[0].GetAdmissionId() != "id-0" {
		t.Errorf("the page after a new trace: %v, %v", second, err)
	}
	_, err = client.ListTraces(t.Context(), &inspectv1.ListTracesRequest{PageSize: 1001, PageToken: "?"})
	rpctest.Failure{Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"page_size", "page_token"},
		Message: "request is invalid: page_size: 1001: expected at most 1000 (and 1 more)"}.Check(t, err)
}
