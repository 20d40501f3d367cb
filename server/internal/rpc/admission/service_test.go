package admission_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	handler "github.com/berthd/berth/server/internal/rpc/admission"
	"github.com/berthd/berth/server/internal/rpc/rpctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine returns its prepared pods, and fails with err if that is set.
type engine struct {
	verdicts map[string]admission.Verdict // by uid
	err      error
	asked    admission.Request
	resize   live.ResizeRequest
	synced   []admission.SyncRequest
	removed  []admission.Scope
	room     live.DefragmentRequest
	rate     uint64
	dry      bool
}

func (e *engine) Admit(_ context.Context, req admission.Request) (admission.Verdict, error) {
	e.asked = req
	return e.verdicts[req.Pod.UID], e.err
}

func (e *engine) Resize(_ context.Context, req live.ResizeRequest) (live.Resized, error) {
	e.resize = req
	return live.Resized{
		Verdict: e.verdicts[req.UID], Restarts: []string{"main"}, Disruption: live.RestartsContainers, ID: "name",
	}, e.err
}

// Defragment sends an event of each kind.
func (e *engine) Defragment(_ context.Context, req live.DefragmentRequest, bytesPerSecond uint64, dryRun bool,
	tell func(live.DefragmentEvent) error) error {
	e.room, e.rate, e.dry = req, bytesPerSecond, dryRun
	waited, more := time.Second, 3*time.Second
	for _, event := range []live.DefragmentEvent{
		{Plan: &live.Defragmentation{Why: "none may move"}},
		{Progress: &live.MoveProgress{UID: "a", ArrivedBytes: 1, AllBytes: 2}},
		{Moved: &live.PodMoved{UID: "a", Took: time.Minute,
			Before: live.PodUse{NodeBytes: map[int]uint64{0: 7}, CPUPressure: &waited, Throttled: &waited},
			After:  live.PodUse{NodeBytes: map[int]uint64{1: 8}, CPUPressure: &more}}},
		{Result: &live.DefragmentResult{Fits: true, Moved: 1}},
	} {
		if err := tell(event); err != nil {
			return err
		}
	}
	return e.err
}

func (e *engine) Remove(_ context.Context, uid string, scope admission.Scope) ([]ledger.Claim, bool, error) {
	e.removed = append(e.removed, scope)
	v, ok := e.verdicts[uid]
	delete(e.verdicts, uid)
	if !ok || e.err != nil {
		return nil, false, e.err
	}
	return v.Pod.Claims, true, nil
}

func (e *engine) Sync(_ context.Context, req admission.SyncRequest) ([]string, error) {
	if req.Known > 7 {
		return nil, errdefs.Preconditionf("revision %d is from the future", req.Known)
	}
	e.synced = append(e.synced, req)
	var removed []string
	for uid := range e.verdicts {
		if !strings.Contains(strings.Join(req.Living, " "), uid) {
			removed = append(removed, uid)
		}
	}
	return removed, e.err
}

// schedulers refuse each amount as too much, except those of one owner, who has no room.
type schedulers struct{}

func (schedulers) Count(owner string, amounts workload.Quantities) (excess []string, err error) {
	if owner == "full" {
		return nil, errdefs.Exhaustedf("no room")
	}
	for r, n := range amounts {
		excess = append(excess, fmt.Sprintf("%s %d", r, n))
	}
	slices.Sort(excess)
	return excess, nil
}

// TestSchedulerAmounts: the amounts of a scheduler are compared, except in a dry run.
func TestSchedulerAmounts(t *testing.T) {
	t.Parallel()
	c := serve(t, &engine{})
	sync := func(req *admissionv1.SyncPodsRequest) string {
		req.KnownRevision, req.AllowEmpty = 1, true
		answer, err := c.SyncPods(t.Context(), req)
		if err != nil {
			return err.Error()
		}
		return strings.Join(answer.GetSchedulerExcess(), ", ")
	}
	amounts := map[string]string{"cpu": "1500m", "memory": "1Gi"}
	if got := sync(&admissionv1.SyncPodsRequest{SchedulerAllocatable: amounts}); got != "cpu 1500, memory 1073741824" {
		t.Errorf("the excess is %q", got)
	}
	if got := sync(&admissionv1.SyncPodsRequest{SchedulerAllocatable: amounts, DryRun: true}); got != "" {
		t.Errorf("a dry run says %q", got)
	}
	if got := sync(&admissionv1.SyncPodsRequest{}); got != "" {
		t.Errorf("without amounts: %q", got)
	}
	if got := sync(&admissionv1.SyncPodsRequest{SchedulerAllocatable: amounts, Owner: "full"}); !strings.Contains(got, "no room") {
		t.Errorf("too many owners: %q", got)
	}
	if got := sync(&admissionv1.SyncPodsRequest{SchedulerAllocatable: map[string]string{"cpu": "much"}}); !strings.Contains(got,
		`scheduler_allocatable["cpu"]`) {
		t.Errorf("no quantity: %q", got)
	}
	many := map[string]string{}
	for i := range 257 {
		many[fmt.Sprintf("example.com/r%d", i)] = "1"
	}
	if got := sync(&admissionv1.SyncPodsRequest{SchedulerAllocatable: many}); !strings.Contains(got,
		"has 257 resources, expected at most 256") {
		t.Errorf("many resources: %q", got)
	}
}

func serve(t *testing.T, e *engine) admissionv1.AdmissionServiceClient {
	t.Helper()
	return admissionv1.NewAdmissionServiceClient(rpctest.Serve(t, func(s grpc.ServiceRegistrar) {
		admissionv1.RegisterAdmissionServiceServer(s, handler.New(e, ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}),
			convert.Reader{}, schedulers{}, e))
	}))
}

// pod is a valid pod of one container.
func pod(uid string) *typesv1.Pod {
	return &typesv1.Pod{
		Metadata: &typesv1.PodMetadata{Name: "pod-" + uid, Uid: uid},
		Spec:     &typesv1.PodSpec{Containers: []*typesv1.Container{{Name: "main"}}},
	}
}

// admitted is the verdict on a pod that holds CPUs 2-3.
func admitted(t *testing.T, uid string) admission.Verdict {
	t.Helper()
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c2t")})
	record := ledgertest.With(ledgertest.Pod(uid, "main"), ledgertest.Exclusive("main", "2-3"))
	record.CgroupParent = "/kubepods/pod" + uid
	record.Trace = &ledger.Trace{AdmissionID: record.AdmissionID, Pod: uid, Admitted: true}
	view, err := l.Update(t.Context(), func(d *ledger.Draft) error { d.PutPod(record); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return admission.Verdict{Outcome: admission.Admitted, QoS: workload.Guaranteed, Pod: record, View: view, Trace: record.Trace}
}

// TestUnservedFieldsAreHandedOn: the engine hears of what the message has and a pod of
// its own has not, and its notes are in the answer.
func TestUnservedFieldsAreHandedOn(t *testing.T) {
	t.Parallel()
	v := admitted(t, "a")
	v.Notes = []admission.Note{{Text: "first"}, {Text: "second", Expected: true}}
	e := &engine{verdicts: map[string]admission.Verdict{"a": v}}
	p := pod("a")
	p.Spec.EphemeralContainers = []*typesv1.Container{{Name: "debug"}}
	got, err := serve(t, e).Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: p}})
	if err != nil || !slices.Equal(got.GetNotes(), []string{"first", "second"}) {
		t.Errorf("%v, notes %q", err, got.GetNotes())
	}
	if want := convert.Unserved(p); len(want) != 1 || !slices.Equal(e.asked.Unserved, want) {
		t.Errorf("handed on %q, want %q", e.asked.Unserved, want)
	}
}

func TestAdmitAnswersWithTheVerdict(t *testing.T) {
	t.Parallel()
	refused := &ledger.Trace{
		AdmissionID: "try-1", Pod: "b", Reason: "TopologyAffinityError", Message: "no",
		Steps: []ledger.Step{{Kind: ledger.StepRefused, Text: "no"}},
	}
	e := &engine{verdicts: map[string]admission.Verdict{
		"a": admitted(t, "a"),
		"b": {
			Outcome: admission.Rejected, Reason: errdefs.TopologyAffinityError, Message: "no",
			QoS: workload.Burstable, Trace: refused,
		},
		"c": {
			Outcome: admission.Deferred, Message: "wait", QoS: workload.BestEffort, RetryAfter: 5 * time.Second,
			Condition: &admission.Condition{Type: "PluginAway", Provider: "device", Resource: "example.com/gpu"},
		},
		"d": {
			Outcome: admission.Deferred, Message: "uncertain", RetryAfter: 5 * time.Second,
			Condition: &admission.Condition{Type: admission.StateUncertain},
		},
	}}
	client := serve(t, e)
	for uid, want := range map[string]*admissionv1.AdmitResponse{
		"a": {
			Verdict: admissionv1.Verdict_VERDICT_ADMITTED, QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			CgroupParent: "/kubepods/poda", AdmissionId: "admission-a", Revision: 1,
			Allocations: []*typesv1.ContainerAllocation{{
				ContainerName: "main", Role: typesv1.ContainerRole_CONTAINER_ROLE_APP, Cpus: &typesv1.CPUSet{List: "2-3"},
				ExclusiveCpus: true,
				Claims: []*typesv1.Claim{{
					Provider: "cpu", Resource: "cpu",
					Payload: &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "2-3"},
						Sharing: typesv1.CPUSharing_CPU_SHARING_EXCLUSIVE}},
				}},
				CpuLocations: []*typesv1.CPULocation{{Cpu: 2, Core: 2}, {Cpu: 3, Core: 3}},
			}},
			SharedCpus: &typesv1.CPUSet{List: "0-1,4-7"},
		},
		"b": {
			Verdict: admissionv1.Verdict_VERDICT_REJECTED, QosClass: typesv1.QOSClass_QOS_CLASS_BURSTABLE,
			Reason: "TopologyAffinityError", Message: "no", AdmissionId: "try-1",
			Trace: &typesv1.Trace{
				AdmissionId: "try-1", PodUid: "b", Reason: "TopologyAffinityError", Message: "no",
				Steps: []*typesv1.TraceStep{{Kind: typesv1.TraceStepKind_TRACE_STEP_KIND_REFUSED, Text: "no"}},
			},
		},
		"c": {
			Verdict: admissionv1.Verdict_VERDICT_DEFERRED, QosClass: typesv1.QOSClass_QOS_CLASS_BEST_EFFORT,
			Message: "wait", RetryAfter: durationpb.New(5 * time.Second),
			Condition: &admissionv1.Condition{
				Reason: "PluginAway", Domain: "berthd.github.io",
				Metadata: map[string]string{"provider": "device", "resource": "example.com/gpu"},
			},
		},
		"d": {
			Verdict: admissionv1.Verdict_VERDICT_DEFERRED, Message: "uncertain", RetryAfter: durationpb.New(5 * time.Second),
			Condition: &admissionv1.Condition{Reason: "StateUncertain", Domain: "berthd.github.io"},
		},
	} {
		got, err := client.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod(uid)}})
		if err != nil {
			t.Fatalf("pod %s: %v", uid, err)
		}
		if !proto.Equal(got, want) {
			t.Errorf("pod %s:\n\t%v\nwant\n\t%v", uid, got, want)
		}
	}
}

func TestAdmitPassesTheRequestOn(t *testing.T) {
	t.Parallel()
	e := &engine{}
	client := serve(t, e)
	if _, err := client.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")},
		AdmissionId: "mine", DryRun: true}); err != nil {
		t.Fatal(err)
	}
	if e.asked.AdmissionID != "mine" || !e.asked.DryRun || e.asked.Pod.Namespace != "default" || e.asked.Pod.Containers[0].Name != "main" {
		t.Errorf("the engine was asked %+v", e.asked)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	type call func(context.Context, admissionv1.AdmissionServiceClient) error
	admit := func(req *admissionv1.AdmitRequest) call {
		return func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
			_, err := c.Admit(ctx, req)
			return err
		}
	}
	bad := pod("")
	bad.Metadata.Name = "web"
	bad.Spec.Containers[0].Resources = &typesv1.ResourceRequirements{Requests: map[string]string{"cpu": "-1", "memory": "lots"}}
	for name, row := range map[string]struct {
		engine error
		call   call
		want   rpctest.Failure
	}{
		"no pod": {call: admit(&admissionv1.AdmitRequest{}), want: rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod"},
			Message: "request is invalid: pod: is required",
		}},
		"bad pod": {call: admit(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: bad}}), want: rpctest.Failure{
			Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
			Fields: []string{
				`pod.spec.containers[0].resources.requests["memory"]`,
				"pod.metadata.uid",
				`pod.spec.containers[0].resources.requests["cpu"]`,
			},
			Message: `pod default/web () is invalid: pod.spec.containers[0].resources.requests["memory"]: ` +
				`"lots": expected a Kubernetes quantity such as 2, 500m or 1Gi (and 2 more)`,
		}},
		"long admission id": {
			call: admit(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")},
				AdmissionId: strings.Repeat("x", 129)}),
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"admission_id"},
				Message: "request is invalid: admission_id: 129 characters: expected at most 128",
			},
		},
		"another specification": {
			engine: errdefs.Preconditionf("pod a is admitted with another specification"),
			call:   admit(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")}}),
			want: rpctest.Failure{
				Code: codes.FailedPrecondition, Reason: "PRECONDITION_FAILED",
				Message: "pod a is admitted with another specification",
			},
		},
		"disk full": {
			engine: errdefs.Unavailablef("commit generation 7: no space left on device"),
			call:   admit(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")}}),
			want: rpctest.Failure{
				Code: codes.Unavailable, Reason: "TEMPORARILY_UNAVAILABLE", Retry: true,
				Message: "commit generation 7: no space left on device",
			},
		},
		"remove nobody": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.RemovePod(ctx, &admissionv1.RemovePodRequest{})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_uid"},
				Message: "request is invalid: pod_uid: is required",
			},
		},
		"owners": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{KnownRevision: 1, AllowEmpty: true, AllOwners: true, Owner: "me"})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"owner"},
				Message: "request is invalid: owner: expected either owner or all_owners, not both",
			},
		},
		"removal for nobody": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: "a", Owner: "Me"})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"owner"},
				Message: `request is invalid: owner: "Me": expected a DNS label of at most 63 characters`,
			},
		},
		"admission for nobody": {
			call: admit(&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")}, Owner: "a.b"}),
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"owner"},
				Message: `request is invalid: owner: "a.b": expected a DNS label of at most 63 characters`,
			},
		},
		"removal fails": {
			engine: errdefs.Deadlinef("remove pod a: processes are left"),
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: "a"})
				return err
			},
			want: rpctest.Failure{Code: codes.DeadlineExceeded, Reason: "TIMED_OUT", Message: "remove pod a: processes are left"},
		},
		"sync with a hole": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a", ""}, KnownRevision: 1})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"active_pod_uids[1]"},
				Message: "request is invalid: active_pod_uids[1]: is required",
			},
		},
		"sync with a table in place of uids": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{ActivePodUids: append(slices.Repeat([]string{"default web 1/1"},
					20), "a"), KnownRevision: 1})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID",
				Fields: []string{
					"active_pod_uids[0]", "active_pod_uids[1]", "active_pod_uids[2]", "active_pod_uids[3]",
					"active_pod_uids[4]", "active_pod_uids[5]", "active_pod_uids[6]", "active_pod_uids[7]",
				},
				Message: `request is invalid: active_pod_uids[0]: "default web 1/1": expected the uid of a pod (and 7 more)`,
			},
		},
		"sync with a list that could not be made": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{KnownRevision: 1})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"allow_empty"},
				Message: "request is invalid: allow_empty: is required with an empty active_pod_uids, since every pod is removed then",
			},
		},
		"sync of nobody knows when": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{})
				return err
			},
			want: rpctest.Failure{
				Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"known_revision", "allow_empty"},
				Message: "request is invalid: known_revision: is required: what AllocationService.GetRevision answered before the list was made (and 1 more)",
			},
		},
		"sync of another ledger": {
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{KnownRevision: 8, AllowEmpty: true})
				return err
			},
			want: rpctest.Failure{Code: codes.FailedPrecondition, Reason: "PRECONDITION_FAILED", Message: "revision 8 is from the future"},
		},
		"sync fails": {
			engine: errdefs.Unavailablef("no"),
			call: func(ctx context.Context, c admissionv1.AdmissionServiceClient) error {
				_, err := c.SyncPods(ctx, &admissionv1.SyncPodsRequest{AllowEmpty: true, KnownRevision: 1})
				return err
			},
			want: rpctest.Failure{Code: codes.Unavailable, Reason: "TEMPORARILY_UNAVAILABLE", Message: "no", Retry: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := &engine{err: row.engine}
			row.want.Check(t, row.call(t.Context(), serve(t, e)))
			if row.engine == nil && e.asked.Pod.UID != "" {
				t.Error("the engine was asked although the request is invalid")
			}
		})
	}
}

func TestRemoveAndSync(t *testing.T) {
	t.Parallel()
	e := &engine{verdicts: map[string]admission.Verdict{"a": admitted(t, "a"), "b": admitted(t, "b")}}
	client := serve(t, e)
	_, err := client.SyncPods(t.Context(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a"}, KnownRevision: 7, DryRun: true})
	if want := (admission.SyncRequest{Living: []string{"a"}, Known: 7, DryRun: true}); err != nil ||
		!reflect.DeepEqual(e.synced[len(e.synced)-1], want) {
		t.Errorf("asked %+v, %v", e.synced, err)
	}
	synced, err := client.SyncPods(t.Context(), &admissionv1.SyncPodsRequest{ActivePodUids: []string{"a"}, KnownRevision: 7})
	if err != nil || len(synced.GetRemovedPodUids()) != 1 || synced.GetRemovedPodUids()[0] != "b" {
		t.Errorf("sync: %v, %v; want b removed", synced, err)
	}
	got, err := client.RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "a"})
	if err != nil || !got.GetRemoved() || len(got.GetReleased()) != 1 || got.GetReleased()[0].GetCpu().GetCpus().GetList() != "2-3" {
		t.Errorf("remove: %v, %v; want CPUs 2-3 released", got, err)
	}
	got, err = client.RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "a"})
	if err != nil || got.GetRemoved() || len(got.GetReleased()) != 0 {
		t.Errorf("remove again: %v, %v; want success and nothing released", got, err)
	}
	if got.GetRevision() != synced.GetRevision() {
		t.Errorf("revisions %d and %d of one ledger", got.GetRevision(), synced.GetRevision())
	}
}

// TestReplayed: a repeated answer is marked.
func TestReplayed(t *testing.T) {
	t.Parallel()
	again := admitted(t, "a")
	again.Repeated = true
	c := serve(t, &engine{verdicts: map[string]admission.Verdict{"a": again, "b": admitted(t, "b")}})
	for uid, want := range map[string]bool{"a": true, "b": false} {
		got, err := c.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod(uid)}})
		if err != nil || got.GetReplayed() != want || got.GetRevision() != 1 {
			t.Errorf("pod %s: %v, %v", uid, got, err)
		}
		resized, err := c.Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: uid})
		if err != nil || resized.GetReplayed() != want || resized.GetRevision() != 1 {
			t.Errorf("pod %s resized: %v, %v", uid, resized, err)
		}
	}
}

// TestOwner: the engine gets the owner of the request.
func TestOwner(t *testing.T) {
	t.Parallel()
	e := &engine{verdicts: map[string]admission.Verdict{"a": admitted(t, "a")}}
	c := serve(t, e)
	if _, err := c.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod("a")},
		Owner: "me"}); err != nil || e.asked.Owner != "me" {
		t.Errorf("%v, admitted for %q", err, e.asked.Owner)
	}
	if _, err := c.Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: "a", Owner: "you"}); err != nil || e.resize.Owner != "you" {
		t.Errorf("%v, resized for %q", err, e.resize.Owner)
	}
	for _, want := range []admission.Scope{{}, {Owner: "me"}, {All: true}} {
		_, err := c.RemovePod(t.Context(), &admissionv1.RemovePodRequest{PodUid: "a", Owner: want.Owner, AllOwners: want.All})
		if got := e.removed[len(e.removed)-1]; err != nil || got != want {
			t.Errorf("%v, removed for %+v, want %+v", err, got, want)
		}
		_, err = c.SyncPods(t.Context(), &admissionv1.SyncPodsRequest{KnownRevision: 1, AllowEmpty: true, Owner: want.Owner,
			AllOwners: want.All})
		if got := e.synced[len(e.synced)-1].Scope; err != nil || got != want {
			t.Errorf("%v, synced for %+v, want %+v", err, got, want)
		}
	}
}

// TestTraceLevel: the trace comes with an answer if it is requested, by default where a pod
// is not admitted. The name of the attempt comes in any case.
func TestTraceLevel(t *testing.T) {
	t.Parallel()
	v := map[string]admission.Verdict{
		"a": admitted(t, "a"),
		"b": {Outcome: admission.Rejected, Trace: &ledger.Trace{AdmissionID: "admission-b"}},
		"c": {Outcome: admission.Deferred, Trace: &ledger.Trace{AdmissionID: "admission-c"}},
	}
	client := serve(t, &engine{verdicts: v})
	for level, want := range map[admissionv1.TraceLevel]string{
		admissionv1.TraceLevel_TRACE_LEVEL_UNSPECIFIED: "bc",
		admissionv1.TraceLevel_TRACE_LEVEL_NONE:        "",
		admissionv1.TraceLevel_TRACE_LEVEL_REFUSED:     "bc",
		admissionv1.TraceLevel_TRACE_LEVEL_FULL:        "abc",
	} {
		admits, resizes := "", ""
		for _, uid := range []string{"a", "b", "c"} {
			got, err := client.Admit(t.Context(), &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod(uid)},
				TraceLevel: level})
			if err != nil || got.GetAdmissionId() != "admission-"+uid {
				t.Errorf("%s: pod %s: %v, %v", level, uid, got, err)
			}
			if got.GetTrace() != nil {
				admits += uid
			}
			resized, err := client.Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: uid, TraceLevel: level})
			if err != nil {
				t.Error(err)
			}
			if resized.GetTrace() != nil {
				resizes += uid
			}
		}
		if admits != want || resizes != want {
			t.Errorf("%s: traces of admissions of %q and resizes of %q, want %q", level, admits, resizes, want)
		}
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}).View()
	record := ledgertest.Pod("a", "main")
	e := &engine{verdicts: map[string]admission.Verdict{
		"a": {Outcome: admission.Admitted, QoS: workload.Guaranteed, Pod: record, View: view, Trace: &ledger.Trace{}},
		"b": {Outcome: admission.Rejected, Reason: errdefs.Infeasible, Message: "no", Trace: &ledger.Trace{}},
		"c": {Outcome: admission.Deferred, Reason: errdefs.ResizeDeferred, RetryAfter: 5 * time.Second, Trace: &ledger.Trace{}},
	}}
	client := serve(t, e)
	tests := []struct {
		uid  string
		want *admissionv1.ResizeResponse
	}{
		{"a", &admissionv1.ResizeResponse{
			Verdict: admissionv1.Verdict_VERDICT_ADMITTED, QosClass: typesv1.QOSClass_QOS_CLASS_GUARANTEED,
			Allocations: allocations.Containers(view, record), SharedCpus: convert.CPUSet(view.SharedCPUs()),
		}},
		{"b", &admissionv1.ResizeResponse{Verdict: admissionv1.Verdict_VERDICT_REJECTED, Reason: "Infeasible", Message: "no"}},
		{"c", &admissionv1.ResizeResponse{
			Verdict: admissionv1.Verdict_VERDICT_DEFERRED, Reason: "Deferred", RetryAfter: durationpb.New(5 * time.Second),
		}},
	}
	for _, tt := range tests {
		got, err := client.Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: tt.uid, DryRun: true})
		tt.want.RestartContainers, tt.want.Trace = []string{"main"}, got.GetTrace()
		tt.want.AdmissionId, tt.want.Disruption = "name", admissionv1.Disruption_DISRUPTION_RESTART
		if err != nil || !proto.Equal(got, tt.want) || !e.resize.DryRun || e.resize.UID != tt.uid {
			t.Errorf("pod %s: got %v, %v, want %v", tt.uid, got, err, tt.want)
		}
	}
	_, err := client.Resize(t.Context(), &admissionv1.ResizeRequest{})
	rpctest.Failure{
		Code: codes.InvalidArgument, Reason: "REQUEST_INVALID", Fields: []string{"pod_uid"},
		Message: "request is invalid: pod_uid: is required",
	}.Check(t, err)
	e.err = errdefs.NotFoundf("pod a is not admitted")
	_, err = client.Resize(t.Context(), &admissionv1.ResizeRequest{PodUid: "a"})
	rpctest.Failure{Code: codes.NotFound, Reason: "OBJECT_NOT_FOUND", Message: "pod a is not admitted"}.Check(t, err)
}

func TestDefragment(t *testing.T) {
	t.Parallel()
	e := &engine{}
	c := serve(t, e)
	receive := func(req *admissionv1.DefragmentRequest) (events []*admissionv1.DefragmentResponse, err error) {
		stream, err := c.Defragment(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		for {
			event, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return events, nil
			}
			if err != nil {
				return events, err
			}
			events = append(events, event)
		}
	}
	events, err := receive(&admissionv1.DefragmentRequest{Pod: pod("new"), Owner: "me", BytesPerSecond: 9 << 20, DryRun: true})
	if err != nil || e.room.Pod.UID != "new" || e.room.Owner != "me" || e.room.MaxMoves != 4 || e.rate != 9<<20 || !e.dry {
		t.Fatalf("%+v, %v", e, err)
	}
	moved := &admissionv1.PodMoved{
		PodUid: "a", Duration: durationpb.New(time.Minute), CpuPressure: durationpb.New(2 * time.Second),
		BytesBefore: map[uint32]uint64{0: 7}, BytesAfter: map[uint32]uint64{1: 8},
	}
	if len(events) != 4 || events[0].GetPlan().GetWhy() != "none may move" || events[1].GetProgress().GetAllBytes() != 2 ||
		!proto.Equal(events[2].GetMoved(), moved) || !events[3].GetResult().GetFits() {
		t.Errorf("%v", events)
	}
	for field, req := range map[string]*admissionv1.DefragmentRequest{
		"bytes_per_second": {Pod: pod("new"), BytesPerSecond: 9},
		"max_moves":        {Pod: pod("new"), MaxMoves: 17},
		"owner":            {Pod: pod("new"), Owner: "No"},
		"pod":              {},
		"pod.metadata.annotations": {Pod: &typesv1.Pod{
			Metadata: &typesv1.PodMetadata{Name: "p", Uid: "p", Annotations: map[string]string{"berthd.github.io/movable": "yes"}},
			Spec:     pod("p").GetSpec(),
		}},
	} {
		if _, err := receive(req); status.Code(err) != codes.InvalidArgument ||
			!strings.Contains(fmt.Sprint(status.Convert(err).Details()...), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
