package berth_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/servertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// admissions is an AdmissionService that returns prepared answers, in order.
type admissions struct {
	admissionv1.UnimplementedAdmissionServiceServer
	mu    sync.Mutex
	fails []error
	asked []*admissionv1.AdmitRequest
	after func() // called before the answer, if set
}

func (a *admissions) Admit(_ context.Context, req *admissionv1.AdmitRequest) (*admissionv1.AdmitResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, req)
	if a.after != nil {
		a.after()
	}
	if n := len(a.asked); n <= len(a.fails) {
		return nil, a.fails[n-1]
	}
	return &admissionv1.AdmitResponse{
		Verdict: admissionv1.Verdict_VERDICT_ADMITTED, AdmissionId: req.GetAdmissionId(),
	}, nil
}

// dir makes a directory whose path is short enough for sockets.
func dir(t *testing.T) string {
	t.Helper()
	d, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(d) })
	return d
}

func dial(t *testing.T, endpoint string, o berth.Options) *berth.Client {
	t.Helper()
	c, err := berth.Dial(t.Context(), endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// admitting serves one AdmissionService and gives a client of it.
func admitting(t *testing.T, a *admissions, o berth.Options) *berth.Client {
	t.Helper()
	path := filepath.Join(dir(t), "berth.sock")
	servertest.Serve(t, path, func(s *grpc.Server) { admissionv1.RegisterAdmissionServiceServer(s, a) })
	return dial(t, path, o)
}

func TestErrorsAreTyped(t *testing.T) {
	t.Parallel()
	var bad errdefs.Violations
	bad.Addf("pod.metadata.uid", "is required")
	bad.Addf("pod.spec.containers", "at least one is required")
	refusal := errdefs.Refuse(errdefs.TopologyAffinityError, "no alignment")
	refusal.Provider, refusal.Resource = "device", "example.com/gpu"

	for _, row := range []struct {
		err    error
		code   codes.Code
		reason string
		is     func(error) bool
	}{
		{bad.Err("pod default/a"), codes.InvalidArgument, "REQUEST_INVALID", berth.IsInvalid},
		{errdefs.NotFoundf("pod a is not known"), codes.NotFound, "OBJECT_NOT_FOUND", berth.IsNotFound},
		{errdefs.Preconditionf("remove it first"), codes.FailedPrecondition, "PRECONDITION_FAILED", berth.IsPrecondition},
		{refusal, codes.FailedPrecondition, "POD_REJECTED", berth.IsPrecondition},
		{errdefs.Existsf("bound").Coded(errdefs.ContainerIDBound, "container_id", "c1"), codes.AlreadyExists, "CONTAINER_ID_BOUND",
			berth.IsExists},
		{errdefs.Violations{{Field: "a/main", Description: "main of a has the CPU"}}.Precondition("").Coded(errdefs.ImportContradicts),
			codes.FailedPrecondition, "IMPORT_CONTRADICTS", berth.IsPrecondition},
		{errdefs.Conflictf("the ledger moved on"), codes.Aborted, "STATE_MOVED", berth.IsStale},
		{errdefs.PermissionDeniedf("no role"), codes.PermissionDenied, "NOT_PERMITTED", berth.IsPermissionDenied},
		{errdefs.Unavailablef("disk full"), codes.Unavailable, "TEMPORARILY_UNAVAILABLE", berth.IsUnavailable},
	} {
		t.Run(row.reason, func(t *testing.T) {
			t.Parallel()
			c := admitting(t, &admissions{fails: []error{row.err}}, berth.Options{Attempts: 1})
			_, err := c.Admission().Admit(t.Context(), &admissionv1.AdmitRequest{})
			wrapped := fmt.Errorf("start pod: %w", err)
			var e *berth.Error
			if !errors.As(wrapped, &e) {
				t.Fatalf("%T is no *berth.Error: %v", err, err)
			}
			if e.Code != row.code || e.Reason != row.reason || e.Error() != row.err.Error() {
				t.Errorf("got %v, %q, %q; want %v, %q, %q", e.Code, e.Reason, e, row.code, row.reason, row.err)
			}
			if e.RequestID == "" {
				t.Errorf("request id %q", e.RequestID)
			}
			for i, is := range []func(error) bool{
				berth.IsInvalid, berth.IsNotFound, berth.IsPrecondition, berth.IsPermissionDenied, berth.IsUnavailable, berth.IsExists,
				berth.IsStale,
			} {
				if got, want := is(wrapped), row.is(wrapped) && is(err); got != want {
					t.Errorf("predicate %d: %v, want %v", i, got, want)
				}
			}
			if !row.is(wrapped) {
				t.Error("its own predicate does not hold")
			}
			if status.Code(err) != row.code {
				t.Errorf("package status sees %v", status.Code(err))
			}
			switch row.reason {
			case "REQUEST_INVALID":
				want := []berth.Violation{{"pod.metadata.uid", "is required"}, {"pod.spec.containers", "at least one is required"}}
				if fmt.Sprint(e.Fields) != fmt.Sprint(want) {
					t.Errorf("fields %v, want %v", e.Fields, want)
				}
			case "IMPORT_CONTRADICTS":
				if want := []berth.Violation{{"a/main", "main of a has the CPU"}}; fmt.Sprint(e.Fields) != fmt.Sprint(want) {
					t.Errorf("violations %v, want %v", e.Fields, want)
				}
			case "TEMPORARILY_UNAVAILABLE", "STATE_MOVED":
				if e.RetryAfter <= 0 {
					t.Error("no time to retry after")
				}
			case "POD_REJECTED":
				if e.Provider != "device" || e.Resource != "example.com/gpu" {
					t.Errorf("the error names %q and %q", e.Provider, e.Resource)
				}
			}
		})
	}
	if berth.IsNotFound(nil) || berth.IsNotFound(errors.New("x")) {
		t.Error("an error of somebody else is not found")
	}
}

func TestErrorsOfTheConnection(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "none.sock")
	c := dial(t, path, berth.Options{Attempts: 1})
	_, err := c.Admit(t.Context(), &admissionv1.AdmitRequest{})
	if want := "dial unix " + path + ": connect: no such file or directory"; !berth.IsUnavailable(err) || err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Admit(ctx, &admissionv1.AdmitRequest{}); !errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call that was given up: %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := c.Admit(ctx, &admissionv1.AdmitRequest{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a call out of time: %v", err)
	}
}

// errSoon has no delay for a retry.
var errSoon = status.Error(codes.Unavailable, "not now")

func TestAdmitAsksAgainUnderOneName(t *testing.T) {
	t.Parallel()
	a := &admissions{fails: []error{errSoon, errSoon}}
	c := admitting(t, a, berth.Options{})
	req := &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: &typesv1.Pod{Metadata: &typesv1.PodMetadata{Uid: "u1"}}}}
	before := proto.Clone(req)
	answer, err := c.Admit(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(req, before) {
		t.Errorf("the caller's request was changed to %v", req)
	}
	if len(a.asked) != 3 || answer.GetAdmissionId() == "" {
		t.Fatalf("asked %d times, admission id %q", len(a.asked), answer.GetAdmissionId())
	}
	for _, asked := range a.asked {
		if asked.GetAdmissionId() != answer.GetAdmissionId() || asked.GetPod().GetMetadata().GetUid() != "u1" {
			t.Errorf("asked with %v, answered for %q", asked, answer.GetAdmissionId())
		}
	}

	for _, row := range []struct{ options, request, want string }{{"", "", ""}, {"me", "", "me"}, {"me", "you", "you"}} {
		_, err := admitting(t, a, berth.Options{Owner: row.options}).Admit(t.Context(),
			&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: req.GetPod()}, AdmissionId: "x", Owner: row.request})
		if got := a.asked[len(a.asked)-1].GetOwner(); err != nil || got != row.want {
			t.Errorf("a client of %q asks for %q as %q: %v", row.options, row.request, got, err)
		}
	}
	req.AdmissionId = "mine"
	if answer, err := c.Admit(t.Context(), req); err != nil || answer.GetAdmissionId() != "mine" {
		t.Errorf("a given name became %q, %v", answer.GetAdmissionId(), err)
	}
}

func TestAdmitGivesUp(t *testing.T) {
	t.Parallel()
	many := []error{errSoon, errSoon, errSoon, errSoon, errSoon, errSoon, errSoon}
	a := &admissions{fails: many}
	if _, err := admitting(t, a, berth.Options{Attempts: 2}).Admit(t.Context(), nil); !berth.IsUnavailable(err) || len(a.asked) != 2 {
		t.Errorf("asked %d times, then %v; want 2, unavailable", len(a.asked), err)
	}
	a = &admissions{fails: []error{errdefs.NotFoundf("x"), nil}}
	if _, err := admitting(t, a, berth.Options{}).Admit(t.Context(), nil); !berth.IsNotFound(err) || len(a.asked) != 1 {
		t.Errorf("asked %d times, then %v; want once, not found", len(a.asked), err)
	}
	// Retries before the caller has called SyncPods are useless.
	uncertain := errdefs.Unavailablef("pod a is not decided about")
	uncertain.Reason = berth.StateUncertain
	a = &admissions{fails: []error{uncertain}}
	if _, err := admitting(t, a, berth.Options{}).Admit(t.Context(), nil); !berth.IsStateUncertain(err) || len(a.asked) != 1 {
		t.Errorf("asked %d times, then %v; want once, while the state is uncertain", len(a.asked), err)
	}
	// The caller cancels while berthd answers, so no retry follows.
	a = &admissions{fails: []error{errdefs.Unavailablef("disk full")}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.after = cancel
	if _, err := admitting(t, a, berth.Options{}).Admit(ctx, nil); err == nil || len(a.asked) != 1 {
		t.Errorf("asked %d times, then %v; want once and an error", len(a.asked), err)
	}
}

// healths is a health service whose streams are scripted, one function each; a
// stream ends with its function.
type healths struct {
	healthv1.UnimplementedHealthServer
	streams []func(send func(healthv1.HealthCheckResponse_ServingStatus))
	opened  atomic.Int32
}

func (h *healths) Watch(_ *healthv1.HealthCheckRequest, s grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	var err error
	n := int(h.opened.Add(1))
	if n <= len(h.streams) {
		h.streams[n-1](func(st healthv1.HealthCheckResponse_ServingStatus) {
			err = errors.Join(err, s.Send(&healthv1.HealthCheckResponse{Status: st}))
		})
	}
	return err
}

type sendStatus = func(healthv1.HealthCheckResponse_ServingStatus)

func TestWaitReady(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "berth.sock")
	c := dial(t, "unix://"+path, berth.Options{})
	if got := c.Endpoint(); got != "unix://"+path {
		t.Errorf("endpoint %q", got)
	}
	// The client waits before there is a server, the server's first stream ends
	// without a word of readiness, the second is not ready at first and then ready.
	ready := make(chan error, 1)
	go func() { ready <- c.WaitReady(t.Context()) }()
	h := &healths{streams: []func(sendStatus){
		func(send sendStatus) { send(healthv1.HealthCheckResponse_NOT_SERVING) },
		func(send sendStatus) {
			send(healthv1.HealthCheckResponse_NOT_SERVING)
			select {
			case err := <-ready:
				t.Errorf("ready before it serves: %v", err)
			default:
			}
			send(healthv1.HealthCheckResponse_SERVING)
		},
		func(send sendStatus) { send(healthv1.HealthCheckResponse_SERVING) },
	}}
	servertest.Serve(t, path, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, h) })
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	if n := h.opened.Load(); n != 2 {
		t.Errorf("%d streams, want 2", n)
	}
	dial(t, path, berth.Options{Wait: true})
}

func TestWaitReadyEndsWithTheContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "berth.sock")
	ctx, cancel := context.WithCancel(t.Context())
	h := &healths{streams: []func(sendStatus){
		func(send sendStatus) { send(healthv1.HealthCheckResponse_NOT_SERVING) },
		func(sendStatus) { cancel(); <-ctx.Done() },
	}}
	servertest.Serve(t, path, func(s *grpc.Server) { healthv1.RegisterHealthServer(s, h) })
	err := dial(t, path, berth.Options{}).WaitReady(ctx)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "ended the health stream") {
		t.Errorf("got %v, want what was known last", err)
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("package status sees %v", status.Code(err))
	}
}

func TestWaitReadyReportsWhatIsWrong(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "berth.sock")
	ctx, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	if _, err := berth.Dial(ctx, path, berth.Options{Wait: true}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody there and no time: %v", err)
	}
	servertest.Serve(t, path, func(*grpc.Server) {})
	var e *berth.Error
	if err := dial(t, path, berth.Options{}).WaitReady(t.Context()); !errors.As(err, &e) || e.Code != codes.Unimplemented {
		t.Errorf("no health service: %v", err)
	}
}

// TestAccessors calls every service through its accessor: each method is
// unimplemented by a server that knows the service, and its message reports which.
func TestAccessors(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "berth.sock")
	servertest.Serve(t, path, func(s *grpc.Server) {
		admissionv1.RegisterAdmissionServiceServer(s, admissionv1.UnimplementedAdmissionServiceServer{})
		allocationv1.RegisterAllocationServiceServer(s, allocationv1.UnimplementedAllocationServiceServer{})
		lifecyclev1.RegisterLifecycleServiceServer(s, lifecyclev1.UnimplementedLifecycleServiceServer{})
		cpuv1.RegisterCPUServiceServer(s, cpuv1.UnimplementedCPUServiceServer{})
		memoryv1.RegisterMemoryServiceServer(s, memoryv1.UnimplementedMemoryServiceServer{})
		devicev1.RegisterDeviceServiceServer(s, devicev1.UnimplementedDeviceServiceServer{})
		topologyv1.RegisterTopologyServiceServer(s, topologyv1.UnimplementedTopologyServiceServer{})
		nodev1.RegisterNodeServiceServer(s, nodev1.UnimplementedNodeServiceServer{})
		inspectv1.RegisterInspectServiceServer(s, inspectv1.UnimplementedInspectServiceServer{})
	})
	c, ctx := dial(t, path, berth.Options{UserAgent: "test"}), t.Context()
	for want, call := range map[string]func() error{
		"method RemovePod not implemented":      func() error { _, err := c.Admission().RemovePod(ctx, nil); return err },
		"method List not implemented":           func() error { _, err := c.Allocation().List(ctx, nil); return err },
		"method PreStartContainer not":          func() error { _, err := c.Lifecycle().PreStartContainer(ctx, nil); return err },
		"method GetAllocatable not implemented": func() error { _, err := c.CPU().GetAllocatable(ctx, nil); return err },
		"method GetTopologyHints not":           func() error { _, err := c.Memory().GetTopologyHints(ctx, nil); return err },
		"method ListResources not implemented":  func() error { _, err := c.Device().ListResources(ctx, nil); return err },
		"method GetPolicy not implemented":      func() error { _, err := c.Topology().GetPolicy(ctx, nil); return err },
		"method GetMachine not implemented":     func() error { _, err := c.Node().GetMachine(ctx, nil); return err },
		"method Dump not implemented":           func() error { _, err := c.Inspect().Dump(ctx, nil); return err },
		"unknown service grpc.health.v1.Health": func() error { return c.WaitReady(ctx) },
	} {
		if err := call(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestAnswerAboveLimit shows that the limit on answers is the client's own.
func TestAnswerAboveLimit(t *testing.T) {
	t.Parallel()
	c := admitting(t, &admissions{}, berth.Options{MaxReceiveBytes: 8})
	_, err := c.Admit(t.Context(), &admissionv1.AdmitRequest{AdmissionId: "a-rather-long-name"})
	var e *berth.Error
	if !errors.As(err, &e) || e.Code != codes.ResourceExhausted {
		t.Errorf("got %v", err)
	}
}

// TestOddPath shows that no character of a path is taken for part of a URL.
func TestOddPath(t *testing.T) {
	t.Parallel()
	path := filepath.Join(dir(t), "a b%20?c#d", "berth.sock")
	servertest.Serve(t, path, func(s *grpc.Server) { admissionv1.RegisterAdmissionServiceServer(s, &admissions{}) })
	if conn, err := net.Dial("unix", path); err != nil {
		t.Fatal(err)
	} else {
		_ = conn.Close()
	}
	for _, endpoint := range []string{path, "unix://" + path} {
		if _, err := dial(t, endpoint, berth.Options{}).Admit(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
}
