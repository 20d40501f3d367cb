// Package tracing sends spans of calls and of the steps of admissions to an OpenTelemetry collector.
//
// Words:
//
//   - call: a gRPC call of berthd. Its span continues the caller's trace if the call's metadata has a "traceparent"
//     (W3C Trace Context).
//   - step: a part of an admission, as reported by hint.Observer. Its span is below the call's.
//
// Invariants: the environment decides, by the variables of the OpenTelemetry specification. Without an endpoint and
// without OTEL_TRACES_EXPORTER=otlp nothing is started, and calls and steps take the same way as without this package.
// A collector that is away or slow costs spans, never a call: spans wait in a bounded queue, and are dropped.
package tracing

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/managers/hint"
)

// flushTime is how long the end waits for a collector to take the last spans.
const flushTime = 5 * time.Second

// Settings are the settings of the environment.
type Settings struct {
	// On is true if spans are sent.
	On bool
	// Protocol is "grpc" or "http/protobuf".
	Protocol string
	// Port is the collector's.
	Port uint16
	// Files are those that the connection needs: certificates and keys.
	Files []string
}

// The variables that are read here; the exporters and the SDK read the others.
const (
	disabledVariable = "OTEL_SDK_DISABLED"
	exporterVariable = "OTEL_TRACES_EXPORTER"
	endpointVariable = "OTEL_EXPORTER_OTLP_ENDPOINT"
	protocolVariable = "OTEL_EXPORTER_OTLP_PROTOCOL"
	tracesEndpoint   = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	tracesProtocol   = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"

	overGRPC = "grpc"
	overHTTP = "http/protobuf"
)

// FromEnvironment reads the settings.
func FromEnvironment(getenv func(string) string) (Settings, error) {
	either := func(names ...string) string {
		for _, n := range names {
			if v := getenv(n); v != "" {
				return v
			}
		}
		return ""
	}
	endpoint := either(tracesEndpoint, endpointVariable)
	switch exporter := getenv(exporterVariable); {
	case strings.EqualFold(getenv(disabledVariable), "true"), exporter == "none", exporter == "" && endpoint == "":
		return Settings{}, nil
	case exporter != "" && exporter != "otlp":
		return Settings{}, fmt.Errorf("%s %q: expected otlp or none", exporterVariable, exporter)
	}
	s := Settings{On: true, Protocol: either(tracesProtocol, protocolVariable)}
	switch s.Protocol {
	case "":
		s.Protocol = overHTTP
	case overGRPC, overHTTP:
	default:
		return Settings{}, fmt.Errorf("%s %q: expected %s or %s", protocolVariable, s.Protocol, overGRPC, overHTTP)
	}
	var err error
	if s.Port, err = portOf(endpoint, s.Protocol); err != nil {
		return Settings{}, err
	}
	for _, kind := range []string{"CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY"} {
		if file := either("OTEL_EXPORTER_OTLP_TRACES_"+kind, "OTEL_EXPORTER_OTLP_"+kind); file != "" {
			s.Files = append(s.Files, file)
		}
	}
	return s, nil
}

// portOf returns the port of an endpoint, by default that of the protocol (OTLP specification).
func portOf(endpoint, protocol string) (uint16, error) {
	usual := uint16(4318)
	if protocol == overGRPC {
		usual = 4317
	}
	if endpoint == "" {
		return usual, nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return 0, fmt.Errorf("%s %q: expected http://HOST:PORT or https://HOST:PORT", endpointVariable, endpoint)
	}
	switch text := u.Port(); {
	case text != "":
		n, err := net.LookupPort("tcp", text)
		return uint16(n), err
	case u.Scheme == "https":
		return 443, nil
	}
	return 80, nil
}

// Tracer makes spans. A nil tracer makes none.
type Tracer struct {
	provider *sdk.TracerProvider
	spans    trace.Tracer
}

// Start starts to send spans if the settings are on, and returns nil otherwise. The log gets what cannot be sent, once for
// each reason.
func Start(ctx context.Context, s Settings, log *slog.Logger) (*Tracer, error) {
	if !s.On {
		return nil, nil
	}
	var (
		exporter sdk.SpanExporter
		err      error
	)
	if s.Protocol == overGRPC {
		exporter, err = otlptracegrpc.New(ctx)
	} else {
		exporter, err = otlptracehttp.New(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	// The environment's attributes (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) come last and win.
	of, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", "berthd"), attribute.String("service.version", version.Of().Version)), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	provider := sdk.NewTracerProvider(sdk.WithBatcher(&logged{SpanExporter: exporter, log: log}), sdk.WithResource(of))
	return &Tracer{provider: provider, spans: provider.Tracer("github.com/berthd/berth")}, nil
}

// logged is an exporter whose failures are in the log, once for each reason until spans are sent again.
type logged struct {
	sdk.SpanExporter
	log *slog.Logger
	// last is the reason that was logged. The SDK exports one batch at a time.
	last string
}

// ExportSpans implements sdk.SpanExporter.
func (l *logged) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	text := ""
	if err := l.SpanExporter.ExportSpans(ctx, spans); err != nil {
		text = err.Error()
	}
	switch {
	case text != "" && l.last != text:
		l.log.Warn("spans are not sent to the collector", "error", text)
	case text == "" && l.last != "":
		l.log.Info("spans are sent to the collector again")
	}
	l.last = text
	return nil
}

// Stop sends what is left, for a few seconds at most.
func (t *Tracer) Stop(ctx context.Context) error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
	defer cancel()
	return t.provider.Shutdown(ctx)
}

// Steps adds spans of steps to an observer. Steps outside of a call have none.
func (t *Tracer) Steps(next hint.Observer) hint.Observer {
	if t == nil {
		return next
	}
	return steps{next, t.spans}
}

type steps struct {
	hint.Observer
	spans trace.Tracer
}

// Begin implements hint.Observer.
func (s steps) Begin(ctx context.Context, step, provider string) (context.Context, time.Time) {
	inner, start := s.Observer.Begin(ctx, step, provider)
	if !trace.SpanContextFromContext(ctx).IsValid() {
		return inner, start
	}
	inner, span := s.spans.Start(inner, "admission "+step, trace.WithAttributes(attribute.String("berth.step", step)))
	if provider != "" {
		span.SetAttributes(attribute.String("berth.provider", provider))
	}
	return inner, start
}

// End implements hint.Observer.
func (s steps) End(inner context.Context, step, provider string, start time.Time, err error) {
	s.Observer.End(inner, step, provider, start, err)
	end(trace.SpanFromContext(inner), err) // of the step; it does nothing outside of a call
}

// Unary makes a span of each unary call; nil for no tracer.
func (t *Tracer) Unary() grpc.UnaryServerInterceptor {
	if t == nil {
		return nil
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		ctx, span := t.call(ctx, info.FullMethod)
		resp, err := next(ctx, req)
		endCall(span, err)
		return resp, err
	}
}

// Stream makes a span of each streaming call; nil for no tracer.
func (t *Tracer) Stream() grpc.StreamServerInterceptor {
	if t == nil {
		return nil
	}
	return func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, span := t.call(stream.Context(), info.FullMethod)
		err := next(srv, inContext{stream, ctx})
		endCall(span, err)
		return err
	}
}

type inContext struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (s inContext) Context() context.Context { return s.ctx }

// carrier reads the metadata of a call.
type carrier metadata.MD

func (c carrier) Get(key string) string {
	if v := metadata.MD(c).Get(key); len(v) > 0 {
		return v[0]
	}
	return ""
}
func (c carrier) Set(string, string) {}
func (c carrier) Keys() (out []string) {
	for key := range c {
		out = append(out, key)
	}
	return out
}

// call begins the span of a call, in the caller's trace if it has one.
func (t *Tracer) call(ctx context.Context, method string) (context.Context, trace.Span) {
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = propagation.TraceContext{}.Extract(ctx, carrier(md))
	}
	name := strings.TrimPrefix(method, "/")
	service, short, _ := strings.Cut(name, "/")
	return t.spans.Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer), trace.WithAttributes(
		attribute.String("rpc.system", "grpc"), attribute.String("rpc.service", service), attribute.String("rpc.method", short)))
}

func endCall(span trace.Span, err error) {
	span.SetAttributes(attribute.Int("rpc.grpc.status_code", int(status.Code(err))))
	end(span, err)
}

// maxText bounds the text of an error in a span.
const maxText = 1 << 10

func end(span trace.Span, err error) {
	if err != nil {
		text := err.Error()
		span.SetStatus(codes.Error, strings.ToValidUTF8(text[:min(len(text), maxText)], ""))
	}
	span.End()
}
