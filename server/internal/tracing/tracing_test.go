package tracing_test

import (
	"context"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/internal/tracing"
)

var discard = slog.New(slog.DiscardHandler)

func TestFromEnvironment(t *testing.T) {
	t.Parallel()
	for env, want := range map[string]string{
		"": "off", "OTEL_EXPORTER_OTLP_ENDPOINT=http://c:4318": "http/protobuf 4318", "OTEL_TRACES_EXPORTER=otlp": "http/protobuf 4318",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=grpc":                             "grpc 4317",
		"OTEL_EXPORTER_OTLP_ENDPOINT=https://c OTEL_EXPORTER_OTLP_CERTIFICATE=/etc/c.pem":        "http/protobuf 443 /etc/c.pem",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c":                                                   "http/protobuf 80",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:1 OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://d:2":   "http/protobuf 2",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:1 OTEL_SDK_DISABLED=true":                          "off",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:1 OTEL_TRACES_EXPORTER=none":                       "off",
		"OTEL_TRACES_EXPORTER=zipkin":                                                            "expected otlp or none",
		"OTEL_EXPORTER_OTLP_ENDPOINT=c:4317":                                                     "expected http://HOST:PORT",
		"OTEL_TRACES_EXPORTER=otlp OTEL_EXPORTER_OTLP_PROTOCOL=http/json":                        "expected grpc or http/protobuf",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://c:1 OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=grpc":         "grpc 1",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://[::1]:99999 OTEL_EXPORTER_OTLP_PROTOCOL=grpc": "invalid port",
	} {
		s, err := tracing.FromEnvironment(func(name string) string {
			for _, v := range strings.Fields(env) {
				if key, value, _ := strings.Cut(v, "="); key == name {
					return value
				}
			}
			return ""
		})
		got := "off"
		switch {
		case err != nil:
			got = err.Error()
		case s.On:
			got = strings.TrimSpace(s.Protocol + " " + strconv.Itoa(int(s.Port)) + " " + strings.Join(s.Files, " "))
		}
		if !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", env, got, want)
		}
	}
}

// receiver collects spans, over HTTP and gRPC.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	spans chan *tracev1.Span
	// service is the name of the service in the last message.
	service chan string
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	for _, rs := range req.GetResourceSpans() {
		for _, a := range rs.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				r.service <- a.GetValue().GetStringValue()
			}
		}
		for _, ss := range rs.GetScopeSpans() {
			for _, s := range ss.GetSpans() {
				r.spans <- s
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	m := &collector.ExportTraceServiceRequest{}
	if err != nil || req.URL.Path != "/v1/traces" || proto.Unmarshal(body, m) != nil {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	_, _ = r.Export(req.Context(), m)
}

const callersTrace = "0af7651916cd43dd8448eb211c80319c"

// TestSpans: a call with steps, sent over each protocol, in the caller's trace.
func TestSpans(t *testing.T) {
	for _, protocol := range []string{"grpc", "http/protobuf"} {
		t.Run(protocol, func(t *testing.T) {
			r := &receiver{spans: make(chan *tracev1.Span, 100), service: make(chan string, 100)}
			var endpoint string
			if protocol == "grpc" {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				server := grpc.NewServer()
				collector.RegisterTraceServiceServer(server, r)
				go func() { _ = server.Serve(l) }()
				defer server.Stop()
				endpoint = "http://" + l.Addr().String()
			} else {
				server := httptest.NewServer(r)
				defer server.Close()
				endpoint = server.URL
			}
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
			settings, err := tracing.FromEnvironment(func(name string) string {
				return map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}[name]
			})
			if err != nil {
				t.Fatal(err)
			}
			tracer, err := tracing.Start(t.Context(), settings, discard)
			if err != nil {
				t.Fatal(err)
			}
			counted := 0
			steps := tracer.Steps(counter{&counted})
			outside, start := steps.Begin(t.Context(), hint.StepCommit, "") // no call, no span
			steps.End(outside, hint.StepCommit, "", start, nil)
			ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("traceparent", "00-"+callersTrace+"-b7ad6b7169203331-01"))
			_, err = tracer.Unary()(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/berth.admission.v1.AdmissionService/Admit"},
				func(ctx context.Context, _ any) (any, error) {
					inner, start := steps.Begin(ctx, hint.StepHints, "cpu")
					deeper, later := steps.Begin(inner, hint.StepMerge, "")
					steps.End(deeper, hint.StepMerge, "", later, errors.New("no room"))
					steps.End(inner, hint.StepHints, "cpu", start, nil)
					return nil, nil
				})
			if err != nil {
				t.Fatal(err)
			}
			if err := tracer.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			close(r.spans)
			names := map[string]*tracev1.Span{}
			for s := range r.spans {
				names[s.GetName()] = s
				if id := hex.EncodeToString(s.GetTraceId()); id != callersTrace {
					t.Errorf("%s is in the trace %s", s.GetName(), id)
				}
			}
			call, hints, merge := names["berth.admission.v1.AdmissionService/Admit"], names["admission hints"], names["admission merge"]
			if len(names) != 3 || call == nil || hints == nil || merge == nil || counted != 3 {
				t.Fatalf("%d spans, %d steps counted: %v", len(names), counted, names)
			}
			if hex.EncodeToString(call.GetParentSpanId()) != "b7ad6b7169203331" ||
				string(hints.GetParentSpanId()) != string(call.GetSpanId()) ||
				string(merge.GetParentSpanId()) != string(hints.GetSpanId()) {
				t.Errorf("parents: %v", names)
			}
			if merge.GetStatus().GetCode() != tracev1.Status_STATUS_CODE_ERROR || merge.GetStatus().GetMessage() != "no room" {
				t.Errorf("the status of a step that failed: %v", merge.GetStatus())
			}
			if got := <-r.service; got != "berthd" {
				t.Errorf("service %s", got)
			}
		})
	}
}

// TestOff: without a tracer there is nothing on the way of calls and steps.
func TestOff(t *testing.T) {
	tracer, err := tracing.Start(t.Context(), tracing.Settings{}, discard)
	if err != nil || tracer != nil || tracer.Unary() != nil || tracer.Stream() != nil || tracer.Stop(t.Context()) != nil {
		t.Errorf("%v, %v", tracer, err)
	}
	if got := testing.AllocsPerRun(100, func() {
		o := tracer.Steps(counter{})
		inner, start := o.Begin(t.Context(), hint.StepPlan, "cpu")
		o.End(inner, hint.StepPlan, "cpu", start, nil)
	}); got != 0 {
		t.Errorf("%v allocations of a step", got)
	}
}

// counter counts the steps that end.
type counter struct{ steps *int } // nil for none

func (counter) Begin(ctx context.Context, _, _ string) (context.Context, time.Time) {
	return ctx, time.Time{}
}

func (c counter) End(_ context.Context, _, _ string, _ time.Time, _ error) {
	if c.steps != nil {
		*c.steps++
	}
}

// BenchmarkStep compares a step without this package, with tracing off, and with tracing on.
func BenchmarkStep(b *testing.B) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	b.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.URL)
	on, err := tracing.Start(b.Context(), tracing.Settings{On: true, Protocol: "http/protobuf"}, discard)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = on.Stop(b.Context()) }()
	var off *tracing.Tracer
	for _, row := range []struct {
		name  string
		steps hint.Observer
	}{{"without", counter{}}, {"off", off.Steps(counter{})}, {"on", on.Steps(counter{})}} {
		b.Run(row.name, func(b *testing.B) {
			run := func(ctx context.Context, _ any) (any, error) {
				for b.Loop() {
					inner, start := row.steps.Begin(ctx, hint.StepPlan, "cpu")
					row.steps.End(inner, hint.StepPlan, "cpu", start, nil)
				}
				return nil, nil
			}
			_, _ = on.Unary()(b.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/s/m"}, run)
		})
	}
}
