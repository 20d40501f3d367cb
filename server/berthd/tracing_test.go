package main

import (
	"context"
	"encoding/hex"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
)

// spans is a collector.
type spans struct {
	collector.UnimplementedTraceServiceServer
	mu    sync.Mutex
	names map[string][]string // by trace; guarded by mu
}

func (s *spans) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range req.GetResourceSpans() {
		for _, ss := range rs.GetScopeSpans() {
			for _, span := range ss.GetSpans() {
				trace := hex.EncodeToString(span.GetTraceId())
				name := span.GetName()
				for _, a := range span.GetAttributes() {
					if a.GetKey() == "berth.provider" {
						name += " " + a.GetValue().GetStringValue()
					}
				}
				s.names[trace] = append(s.names[trace], name)
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestTracing: a berthd that may connect to nothing else sends the spans of an admission to a collector, in the caller's
// trace.
func TestTracing(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got := &spans{names: map[string][]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, got)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()
	n := newNode(t)
	n.env = append(n.env, "OTEL_EXPORTER_OTLP_ENDPOINT=http://"+l.Addr().String(), "OTEL_EXPORTER_OTLP_PROTOCOL=grpc")
	d := n.start()
	const trace = "0af7651916cd43dd8448eb211c80319c"
	ctx := metadata.AppendToOutgoingContext(n.ctx(), "traceparent", "00-"+trace+"-b7ad6b7169203331-01")
	answer, err := d.admission.Admit(ctx,
		&admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: guaranteed("traced", 1, 0)}})
	if err != nil || answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED {
		t.Fatalf("%v, %v", answer, err)
	}
	// The last spans are sent at the end.
	if err := d.End(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	all := strings.Join(got.names[trace], "\n")
	for _, want := range []string{
		"berth.admission.v1.AdmissionService/Admit", "admission hints cpu", "admission merge", "admission plan cpu", "admission cgroup",
		"admission commit",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("no span %q in the caller's trace, only\n%s", want, all)
		}
	}
}
