package inspect_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

// TestListHistory: admissions, refusals and changes by berthd itself, the newest first,
// filtered, in pages of any size. A damaged entry is listed as such.
func TestListHistory(t *testing.T) {
	t.Parallel()
	begin := time.Date(2026, 11, 20, 3, 0, 0, 0, time.UTC)
	now := begin
	j := ledgertest.NewJournal()
	l := ledgertest.OpenRecording(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: machinetest.Build("4c")}},
		history.Limits{Entries: 100}, func() time.Time { return now })
	for n := range 8 { // entries 2 to 9; the first is the start
		now = now.Add(time.Minute)
		p := ledgertest.Pod(fmt.Sprint("u", n), "c")
		call := &history.Call{
			Name: "Admit", Time: now.Add(-time.Second), Caller: &history.Caller{UID: uint32(n % 3), Name: fmt.Sprint("agent", n%2)},
			Request: &history.Request{Pod: &workload.Pod{UID: p.UID(), Name: strings.Repeat("x", 60<<10)}},
		}
		ctx := history.WithCall(t.Context(), call)
		call.Step("hints", "cpu", time.Millisecond)
		call.Step("hints", "cpu", time.Millisecond)
		if n%4 == 3 {
			l.Refused(ctx, history.Refusal{Verdict: "rejected", Reason: "OutOfcpu", Message: "m", Pod: p, View: l.View(),
				AdmissionID: "id"})
			ctx = t.Context()
			p = ledgertest.Pod("own"+p.UID(), "c")
		}
		if _, err := l.Update(ctx, func(d *ledger.Draft) error { d.PutPod(p); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	// 1 start, 2-4 admitted, 5 refused, 6 own, 7-9 admitted, 10 refused, 11 own
	j.Alter(journal.BucketHistory, "00000000000000000008", func([]byte) []byte { return []byte("{}") })
	client := inspectv1.NewInspectServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{Ledger: l}))
	}))
	for name, row := range map[string]struct {
		req  *inspectv1.ListHistoryRequest
		want string
	}{
		"all":      {&inspectv1.ListHistoryRequest{}, "11 10 9 8! 7 6 5 4 3 2 1"},
		"pages":    {&inspectv1.ListHistoryRequest{PageSize: 4}, "11 10 9 8! | 7 6 5 4 | 3 2 1"},
		"rejected": {&inspectv1.ListHistoryRequest{Verdict: admissionv1.Verdict_VERDICT_REJECTED}, "10 5"},
		"reason":   {&inspectv1.ListHistoryRequest{Reason: "OutOfcpu", PageSize: 1}, "10 | 5"},
		"uid":      {&inspectv1.ListHistoryRequest{PodUid: "u1"}, "3"},
		"name":     {&inspectv1.ListHistoryRequest{Namespace: "default", Name: "pod-u4"}, "7"},
		"user":     {&inspectv1.ListHistoryRequest{CallerUid: proto.Uint32(0)}, "9 5 2"},
		"process":  {&inspectv1.ListHistoryRequest{CallerName: "agent1"}, "10 5 3"},
		"call":     {&inspectv1.ListHistoryRequest{Call: "Start"}, "1"},
		"time": {&inspectv1.ListHistoryRequest{FromTime: timestamppb.New(begin.Add(2 * time.Minute)),
			UntilTime: timestamppb.New(begin.Add(5 * time.Minute))}, "8! 6 5 4 3"},
		"nothing":    {&inspectv1.ListHistoryRequest{Namespace: "away"}, ""},
		"everything": {&inspectv1.ListHistoryRequest{PageSize: 1000}, "11 10 9 8! 7 6 5 4 3 2 1"},
	} {
		var pages []string
		for req := row.req; ; {
			got, err := client.ListHistory(t.Context(), req)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			var page []string
			for _, e := range got.GetEntries() {
				text := fmt.Sprint(e.GetNumber())
				if e.GetDamage() != "" {
					text += "!"
				}
				page = append(page, text)
			}
			pages = append(pages, strings.Join(page, " "))
			if req.PageToken = got.GetNextPageToken(); req.GetPageToken() == "" {
				break
			}
		}
		if got := strings.Join(pages, " | "); got != row.want {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
	got, err := client.ListHistory(t.Context(), &inspectv1.ListHistoryRequest{PodUid: "u3"})
	if err != nil {
		t.Fatal(err)
	}
	e := got.GetEntries()[0]
	if e.GetDuration().AsDuration() != time.Second || len(e.GetSteps()) != 1 ||
		e.GetSteps()[0].GetDuration().AsDuration() != 2*time.Millisecond ||
		e.GetCaller().GetName() != "agent1" || e.GetAdmissionId() != "id" || e.GetMessage() != "m" ||
		!strings.Contains(e.GetRequest(), `"uid":"u3"`) {
		t.Errorf("entry %v", e)
	}
	for name, req := range map[string]*inspectv1.ListHistoryRequest{
		"page":  {PageSize: 1001},
		"token": {PageToken: "!"},
		"time":  {FromTime: &timestamppb.Timestamp{Nanos: -1}},
		"until": {UntilTime: &timestamppb.Timestamp{Nanos: -1}},
	} {
		if _, err := client.ListHistory(t.Context(), req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}
