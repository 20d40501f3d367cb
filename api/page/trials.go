package page

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/api/access"
	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
)

// trials are the dry runs by their paths, with the role that the call needs.
var trials = map[string]struct {
	role access.Role
	make func(s *server, ctx context.Context, r *http.Request, body []byte) (any, error)
}{
	"/api/v1/trials/pod":    {access.Read, (*server).tryPod},
	"/api/v1/trials/resize": {access.Read, (*server).tryResize},
	"/api/v1/trials/policy": {access.Admin, (*server).tryPolicy},
	"/api/v1/trials/defrag": {access.Admin, (*server).tryDefrag},
}

var errTooMany = status.Error(codes.ResourceExhausted, "too many trials: try again in a second")

// badPod is an error about the text of a pod.
type badPod struct {
	error
	text []byte
}

func (e *badPod) Unwrap() error { return e.error }

// aboutPod marks an error of the caller as one about a text.
func aboutPod(text []byte, err error) error {
	if status.Code(err) != codes.InvalidArgument {
		return err
	}
	return &badPod{err, text}
}

// readPod reads the pod of a trial.
func (s *server) readPod(text []byte) (*typesv1.Pod, []remark, error) {
	pod, ignored, err := readPod(text)
	if err != nil {
		return nil, nil, &badPod{status.Error(codes.InvalidArgument, err.Error()), text}
	}
	for i := range ignored {
		ignored[i] += " is ignored"
	}
	return pod, remarks(text, ignored), nil
}

// told is a decision in sentences.
func told(t *typesv1.Trace) object {
	parts, starred := sentences.Steps(t, t.GetSteps(), false)
	if parts == nil {
		parts = []sentences.Part{}
	}
	note := ""
	if starred {
		note = sentences.StarNote
	}
	return object{"parts": parts, "note": note}
}

// trace is the explanation of an admission, with who has sent it.
func (s *server) trace(ctx context.Context, r *http.Request) (any, error) {
	client := inspectv1.NewInspectServiceClient(s.Conn)
	req := &inspectv1.GetTraceRequest{Subject: &inspectv1.GetTraceRequest_AdmissionId{AdmissionId: r.FormValue("admission")}}
	found, err := client.GetTrace(ctx, req)
	if err != nil {
		return nil, err
	}
	t := found.GetTrace()
	out := object{"trace": t, "told": told(t), "caller": ""}
	// The history has the last calls about the pod; a node without a history does not know who has sent it.
	list, err := client.ListHistory(ctx, &inspectv1.ListHistoryRequest{PodUid: t.GetPodUid()})
	if err != nil {
		return out, nil
	}
	for _, e := range list.GetEntries() {
		if e.GetAdmissionId() == t.GetAdmissionId() {
			out["caller"] = sentences.Caller(e.GetCaller())
		}
	}
	return out, nil
}

// tryPod is a dry run of an admission.
func (s *server) tryPod(ctx context.Context, _ *http.Request, body []byte) (any, error) {
	pod, ignored, err := s.readPod(body)
	if err != nil {
		return nil, err
	}
	got, err := admissionv1.NewAdmissionServiceClient(s.Conn).Admit(ctx, &admissionv1.AdmitRequest{
		Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}, DryRun: true, TraceLevel: admissionv1.TraceLevel_TRACE_LEVEL_FULL,
	})
	if err != nil {
		return nil, aboutPod(body, err)
	}
	return object{"answer": got, "told": told(got.GetTrace()), "ignored": ignored}, nil
}

// tryResize is always a dry run of a resize.
func (s *server) tryResize(ctx context.Context, _ *http.Request, body []byte) (any, error) {
	req := &admissionv1.ResizeRequest{}
	if err := readRequest(body, req); err != nil {
		return nil, err
	}
	req.DryRun, req.TraceLevel, req.AdmissionId = true, admissionv1.TraceLevel_TRACE_LEVEL_FULL, ""
	got, err := admissionv1.NewAdmissionServiceClient(s.Conn).Resize(ctx, req)
	if err != nil {
		return nil, err
	}
	return object{"answer": got, "told": told(got.GetTrace())}, nil
}

// tryPolicy is always a dry run of a change of the policy.
func (s *server) tryPolicy(ctx context.Context, _ *http.Request, body []byte) (any, error) {
	req := &topologyv1.SetPolicyRequest{}
	if err := readRequest(body, req); err != nil {
		return nil, err
	}
	req.DryRun = true
	return topologyv1.NewTopologyServiceClient(s.Conn).SetPolicy(ctx, req)
}

// tryDefrag is the plan of a defragmentation for a pod: a dry run has no other event.
func (s *server) tryDefrag(ctx context.Context, r *http.Request, body []byte) (any, error) {
	moves, err := strconv.ParseUint(r.FormValue("moves"), 10, 5)
	if err != nil || moves < 1 || moves > 16 {
		return nil, status.Errorf(codes.InvalidArgument, "moves: %.20q: expected a number from 1 to 16", r.FormValue("moves"))
	}
	pod, ignored, err := s.readPod(body)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	events, err := admissionv1.NewAdmissionServiceClient(s.Conn).Defragment(ctx, &admissionv1.DefragmentRequest{
		Pod: pod, MaxMoves: uint32(moves), DryRun: true,
	})
	if err != nil {
		return nil, err
	}
	event, err := events.Recv()
	if errors.Is(err, io.EOF) || err == nil && event.GetPlan() == nil {
		return nil, status.Error(codes.Internal, "berthd has sent no plan")
	}
	if err != nil {
		return nil, aboutPod(body, err)
	}
	return object{"plan": event.GetPlan(), "ignored": ignored}, nil
}

// readRequest reads a request in protobuf's JSON.
func readRequest(body []byte, into proto.Message) error {
	if err := protojson.Unmarshal(body, into); err != nil {
		return status.Errorf(codes.InvalidArgument, "expected a %s in JSON: %v", into.ProtoReflect().Descriptor().FullName(), err)
	}
	return nil
}
