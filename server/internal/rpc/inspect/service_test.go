package inspect_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/history"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/server/internal/rpc/inspect"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve has pod "a", admitted at the second attempt, with CPUs that are reserved
// since.
func serve(t *testing.T) inspectv1.InspectServiceClient {
	t.Helper()
	m := machinetest.Build("4c")
	j := ledgertest.NewJournal()
	before, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: m}})
	pod := ledgertest.With(ledgertest.Pod("a", "main"), ledgertest.Exclusive("main", "1"))
	pod.Trace = &ledger.Trace{AdmissionID: "second", Pod: "a", Namespace: "default", Name: "pod-a", Admitted: true}
	first := &ledger.Trace{AdmissionID: "first", Pod: "a", Namespace: "default", Name: "pod-a", Reason: "TopologyAffinityError"}
	for _, change := range []func(*ledger.Draft){
		func(d *ledger.Draft) { d.PutTrace(first) },
		func(d *ledger.Draft) { d.PutPod(pod) },
	} {
		if _, err := before.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	l, _ := ledgertest.Open(t, journal.Options{Journal: j, Rules: ledger.Rules{Machine: m, ReservedCPUs: cpuset.Of(1)}})
	return inspectv1.NewInspectServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{
			Ledger: history.Ledger{Ledger: l}, Start: func() []string { return []string{"the configuration has changed"} },
		}))
	}))
}

func TestDumpIsWhatIsStored(t *testing.T) {
	t.Parallel()
	got, err := serve(t).Dump(t.Context(), &inspectv1.DumpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, e := range got.GetEntries() {
		keys = append(keys, e.GetBucket()+" "+e.GetKey())
		if !json.Valid([]byte(e.GetValue())) {
			t.Errorf("%s/%s is no JSON: %s", e.GetBucket(), e.GetKey(), e.GetValue())
		}
	}
	if want := []string{"pods a", "claims a/main/cpu", "meta generation", "meta machine"}; got.GetRevision() != 2 || len(keys) != 10 ||
		slices.ContainsFunc(want, func(k string) bool { return !slices.Contains(keys, k) }) {
		t.Errorf("revision %d with %d entries:\n%s", got.GetRevision(), len(keys), strings.Join(keys, "\n"))
	}
}

// TestStreamDump: a ledger that is too large for one message, for a client that was
// told nothing, comes in parts.
func TestStreamDump(t *testing.T) {
	t.Parallel()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		for i := range 2000 {
			p := ledgertest.Pod(fmt.Sprint("pod-", i), "main")
			p.Trace = &ledger.Trace{AdmissionID: p.UID(), Pod: p.UID(), Steps: []ledger.Step{{Text: strings.Repeat("why ", 600)}}}
			d.PutPod(p)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	conn := rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		inspectv1.RegisterInspectServiceServer(s, inspect.New(inspect.Parts{Ledger: history.Ledger{Ledger: l}}))
	})
	client := inspectv1.NewInspectServiceClient(conn)
	if _, err := client.Dump(t.Context(), &inspectv1.DumpRequest{}); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("this ledger fits into one message: %v", err)
	}
	stream, err := client.StreamDump(t.Context(), &inspectv1.StreamDumpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var got []journal.Entry
	parts := 0
	for ; ; parts++ {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if size := proto.Size(part); size > 1<<20+1<<16 || part.GetRevision() != 1 {
			t.Errorf("part %d has %d bytes, revision %d", parts, size, part.GetRevision())
		}
		for _, e := range part.GetEntries() {
			got = append(got, journal.Entry{Bucket: e.GetBucket(), Key: e.GetKey(), Value: []byte(e.GetValue())})
		}
	}
	want, err := journal.Dump(l.View())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) || parts < 5 {
		t.Errorf("%d entries in %d parts, want %d", len(got), parts, len(want))
	}
}

func TestCheckReportsFindingsAndTheStart(t *testing.T) {
	t.Parallel()
	got, err := serve(t).Check(t.Context(), &inspectv1.CheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetFindings()) != 1 {
		t.Fatalf("got %v, want one finding", got)
	}
	text := got.GetFindings()[0].GetText()
	want := &inspectv1.CheckResponse{
		Revision: 2, StartReport: []string{"the configuration has changed"},
		Findings: []*inspectv1.Finding{{Kind: inspectv1.FindingKind_FINDING_KIND_POLICY,
			Holder: &typesv1.ContainerRef{PodUid: "a", ContainerName: "main"}, Text: text}},
	}
	if !proto.Equal(got, want) || !strings.Contains(text, "reserved") {
		t.Errorf("got %v, want %v about a reserved CPU", got, want)
	}
}

func TestGetTrace(t *testing.T) {
	t.Parallel()
	client := serve(t)
	for name, row := range map[string]struct {
		req  *inspectv1.GetTraceRequest
		want string
		fail rpctest.Failure
	}{
		"admission": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: "first"}},
			want: "first"},
		"uid": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: "a"}}, want: "second"},
		"name": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: "default/pod-a"}},
			want: "second"},
		"short name": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: "pod-a"}}, want: "second"},
		"other space": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: "away/pod-a"}},
			fail: rpctest.Failure{
				Code: codes.NotFound, Reason: "TRACE_NOT_FOUND", Message: "no admission is remembered with pod_name away/pod-a",
			}},
		"unknown": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodUid{PodUid: "b"}}, fail: rpctest.Failure{
			Code: codes.NotFound, Reason: "TRACE_NOT_FOUND", Message: "no admission is remembered with pod_uid b",
		}},
		"nothing": {req: &inspectv1.GetTraceRequest{}, fail: rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"admission_id"},
			Message: "request is invalid: admission_id: expected exactly one of admission_id, pod_uid and pod_name",
		}},
		"no name": {req: &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_PodName{PodName: strings.Repeat("a", 513)}},
			fail: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_name"},
				Message: "request is invalid: pod_name: 513 characters: expected at most 512",
			}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := client.GetTrace(t.Context(), row.req)
			row.fail.Check(t, err)
			if got.GetTrace().GetAdmissionId() != row.want {
				t.Errorf("got %v, want that of admission %q", got, row.want)
			}
		})
	}
}

// TestStartReport: the cases of a start come with what was kept and from where.
func TestStartReport(t *testing.T) {
	t.Parallel()
	s := inspect.New(inspect.Parts{
		Start: func() []string { return []string{"the ledger is an older copy"} },
		Recovered: func() inspect.Recovered {
			return inspect.Recovered{OlderCopy: true, Decisions: []recovery.Decision{
				{UID: "a", Namespace: "default", Name: "pod-a", Case: recovery.Unrecorded, Living: true, Waits: true,
					Source: ledger.FromKernel, DevicesUnknown: true, Text: "more"},
				{UID: "b", Case: recovery.NeverAdmitted},
			}}
		},
	})
	got, err := s.GetStartReport(t.Context(), &inspectv1.GetStartReportRequest{})
	want := &inspectv1.GetStartReportResponse{
		OlderCopy: true, Lines: []string{"the ledger is an older copy"},
		Pods: []*inspectv1.PodCase{
			{
				Uid: "a", Namespace: "default", Name: "pod-a", Found: "not in the ledger, claim record whole", Living: true,
				Kept: "devices that are not known", Source: inspectv1.PodSource_POD_SOURCE_KERNEL, Waits: true, Note: "more",
			},
			{Uid: "b", Found: "not in the ledger, not running", Kept: "nothing"},
		},
	}
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("%v\n%v\n%v", err, got, want)
	}
}
