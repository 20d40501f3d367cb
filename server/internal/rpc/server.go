package rpc

import (
	"cmp"
	"context"
	"crypto/rand"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/logging"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/wire"
)

// Config of a server.
type Config struct {
	// Access of the callers; nil permits all callers. Only sockets that are protected by their
	// directory's permissions use nil (pod-resources).
	Access *Access
	// Bounds of the callers; they need Access.
	Bounds Bounds
	// MaxReceiveBytes bounds a request message, and MaxElements one of users other than
	// root; 0 means 4 MiB and DefaultMaxElements.
	MaxReceiveBytes, MaxElements int
	// Ceiling is the longest that a unary call may take; 0 means no limit.
	Ceiling time.Duration
	Log     *slog.Logger
	// Observe is called with the outcome of every call; may be nil.
	Observe func(fullMethod, code string, took time.Duration)
	// TraceUnary and TraceStream are called before all else; nil for no traces.
	TraceUnary  grpc.UnaryServerInterceptor
	TraceStream grpc.StreamServerInterceptor
	// Page marks the connections of berthd's page; nil if there is none.
	Page *Page
	// Begin completes the context of a unary call that is permitted; nil for nothing.
	Begin func(ctx context.Context, fullMethod string) context.Context
	// Gate refuses permitted calls by their request; nil refuses none.
	Gate func(fullMethod string, req any) error
	// Limiter can reject calls before their messages are read, where there are no roles; nil rejects none.
	Limiter Limiter

	limiter *limiter // nil without Access
	lines   *lines
	limits  *atomic.Pointer[Limits]
}

// Limits are the limits that can change while a server runs.
type Limits struct {
	// Connections and Calls of each user, as in Bounds.
	Connections, Calls int
	// MaxElements and Ceiling are as in Config.
	MaxElements int
	Ceiling     time.Duration
}

// orDefault sets missing values.
func (l Limits) orDefault() *Limits {
	l.Connections = cmp.Or(l.Connections, defaultConnections)
	l.Calls = cmp.Or(l.Calls, defaultCalls)
	l.MaxElements = cmp.Or(l.MaxElements, DefaultMaxElements)
	return &l
}

// firstLimits are the initial limits of a server.
func (cfg Config) firstLimits() *atomic.Pointer[Limits] {
	limits := new(atomic.Pointer[Limits])
	limits.Store(Limits{
		Connections: cfg.Bounds.Connections, Calls: cfg.Bounds.Calls, MaxElements: cfg.MaxElements, Ceiling: cfg.Ceiling,
	}.orDefault())
	return limits
}

// SetLimits puts other limits into force, for connections and calls that begin later.
func (s *Server) SetLimits(l Limits) { s.reading.cfg.limits.Store(l.orDefault()) }

// ceiling is the longest that a unary call may take; 0 means no limit.
func (cfg Config) ceiling() time.Duration { return cfg.current().Ceiling }

// current are the limits in force: the server's, or else the initial ones of the configuration.
func (cfg Config) current() *Limits {
	if cfg.limits == nil {
		return cfg.firstLimits().Load()
	}
	return cfg.limits.Load()
}

// Limiter decides whether there is room for one more call.
type Limiter interface{ Allow() bool }

// Bounds of one connection.
const (
	maxHeaderBytes = 64 << 10
	maxStreams     = 1024
	handshakeTime  = 10 * time.Second
)

// Windows of a call and of a connection: what may arrive before it is read.
const (
	streamWindow = 64 << 10
	connWindow   = 1 << 20
)

// DefaultMaxReceiveBytes limits a request unless configured.
const DefaultMaxReceiveBytes = 4 << 20

// streamWorkers are goroutines that stay between calls: a new one has to grow its
// stack several times on its way through an admission. Calls beyond them get
// goroutines of their own.
const streamWorkers = 4

// NewServer makes a server with the frame described at the top of the package.
func NewServer(cfg Config) *Server {
	cfg.MaxReceiveBytes = cmp.Or(cfg.MaxReceiveBytes, DefaultMaxReceiveBytes)
	cfg.limits = cfg.firstLimits()
	cfg.lines = newLines()
	unaryBefore, streamBefore := cfg.outermost()
	peers := credentials.TransportCredentials(pageCredentials{PeerCredentials(), cfg.Page})
	frame := cfg.unlimited(peers)
	if cfg.Access != nil {
		cfg.limiter = newLimiter(cfg)
		frame = cfg.limiter.options(peers)
	}
	reading := reading{cfg, cfg.limiter}
	return &Server{reading: reading, Server: grpc.NewServer(append(frame,
		grpc.MaxRecvMsgSize(cfg.MaxReceiveBytes),
		grpc.ForceServerCodecV2(counting{wire.Codec()}),
		// These limit the bytes that arrive before they are read. A message that is being read
		// may arrive completely.
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.NumStreamWorkers(streamWorkers),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.ConnectionTimeout(handshakeTime),
		grpc.ChainUnaryInterceptor(append(unaryBefore,
			unary{cfg}.call,
		)...),
		grpc.ChainStreamInterceptor(append(streamBefore,
			reading.stream,
			requestIDStream,
			cfg.observeStream,
			recovery.StreamServerInterceptor(recovery.WithRecoveryHandlerContext(cfg.panicked)),
			cfg.gateStream,
			statusStream,
		)...),
	)...)}
}

// outermost are the interceptors for traces.
func (cfg Config) outermost() (unary []grpc.UnaryServerInterceptor, stream []grpc.StreamServerInterceptor) {
	if cfg.TraceUnary != nil {
		unary = append(unary, cfg.TraceUnary)
	}
	if cfg.TraceStream != nil {
		stream = append(stream, cfg.TraceStream)
	}
	return unary, stream
}

// panicked logs a panic in a handler, and returns the error of the call.
func (cfg Config) panicked(ctx context.Context, p any) error {
	cfg.Log.ErrorContext(ctx, "panic in a handler", "panic", p, "request_id", RequestID(ctx), "stack", string(debug.Stack()))
	return Status(ctx, errdefs.Internalf("panic in berthd, see its log: %v", p))
}

// unary is what every unary call goes through. It is one interceptor, because each one costs each call a closure.
type unary struct{ cfg Config }

// call gives the call its id, and counts and logs its outcome.
func (u unary) call(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx = withRequestID(ctx)
	start := time.Now()
	resp, err := u.recovered(ctx, req, info, next)
	u.cfg.observe(info.FullMethod, err, start)
	u.cfg.logCall(ctx, info.FullMethod, err, start)
	return resp, err
}

// recovered turns a panic into an error.
func (u unary) recovered(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			resp, err = nil, u.cfg.panicked(ctx, p)
		}
	}()
	return u.cfg.gateUnary(ctx, req, info, next)
}

// gateUnary applies role and ceiling, and converts the error to a status.
func (cfg Config) gateUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if cfg.Access != nil {
		if err := cfg.Access.authorize(ctx, info.FullMethod, req); err != nil {
			return nil, Status(ctx, err)
		}
	}
	if cfg.Gate != nil {
		if err := cfg.Gate(info.FullMethod, req); err != nil {
			return nil, Status(ctx, err)
		}
	}
	ctx, end := cfg.following(ctx, info.FullMethod, req)
	defer end()
	noteAgent(ctx, info.FullMethod, req)
	if cfg.Begin != nil {
		ctx = cfg.Begin(ctx, info.FullMethod)
	}
	if ceiling := cfg.ceiling(); ceiling > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ceiling)
		defer cancel()
	}
	leave, err := cfg.slot(ctx, info.FullMethod, req)
	if err != nil {
		return nil, Status(ctx, err)
	}
	defer leave()
	resp, err := next(ctx, req)
	if err != nil {
		return nil, revoked(ctx, Status(ctx, err))
	}
	return encode(ctx, resp)
}

// slot waits for a slot, if the call needs one.
func (cfg Config) slot(ctx context.Context, method string, req any) (leave func(), err error) {
	t, counted := ctx.Value(ticketKey{}).(*ticket)
	costs := counted && isCostly(method, req)
	if counted && (costs || !keepsTurn(method)) {
		t.endTurn()
	}
	if !costs {
		return func() {}, nil
	}
	return t.takeSlot(ctx)
}

func (cfg Config) gateStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	switch {
	case cfg.Access == nil:
	case triesOnPage(ss.Context(), info.FullMethod): // only a dry run, which the request says
		ss = gatedStream{ss, func(req any) error { return cfg.Access.authorize(ss.Context(), info.FullMethod, req) }}
	default:
		if err := cfg.Access.authorize(ss.Context(), info.FullMethod, nil); err != nil {
			return Status(ss.Context(), err)
		}
	}
	if cfg.Gate != nil {
		ss = gatedStream{ss, func(req any) error { return cfg.Gate(info.FullMethod, req) }}
	}
	ctx, end := cfg.following(ss.Context(), info.FullMethod, nil)
	defer end()
	return revoked(ctx, cfg.stream(ctx, srv, ss, info, next))
}

// gatedStream refuses a call when its handler reads the request.
type gatedStream struct {
	grpc.ServerStream
	gate func(req any) error
}

// RecvMsg implements grpc.ServerStream.
func (s gatedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if err := s.gate(m); err != nil {
		return Status(s.Context(), err)
	}
	return nil
}

// stream carries a streaming call out, in a slot if it is costly.
func (cfg Config) stream(ctx context.Context, srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if ctx != ss.Context() {
		ss = streamWithContext{ss, ctx}
	}
	t, counted := ctx.Value(ticketKey{}).(*ticket)
	if !counted {
		return next(srv, ss)
	}
	t.endTurn()
	if !costly[info.FullMethod] {
		return next(srv, ss)
	}
	defer t.leaveSlot()
	if ceiling := cfg.ceiling(); ceiling > 0 { // other calls of the user wait for this one
		limited, cancel := context.WithTimeout(ctx, ceiling)
		defer cancel()
		defer context.AfterFunc(limited, t.closeOverdue)()
		ss = streamWithContext{ss, limited}
	}
	return next(srv, costlyStream{ss, t})
}

// closeOverdue closes the call's connection if the client does not read. The handler does not
// return before.
func (t *ticket) closeOverdue() {
	if t.conn != nil && t.conn.answers.isStalled() {
		_ = t.conn.Conn.Close() // gRPC notices, and closes t.conn
	}
}

// costlyStream is a costly call that has a slot while its handler has the request and sends
// nothing.
type costlyStream struct {
	grpc.ServerStream
	ticket *ticket
}

// RecvMsg implements grpc.ServerStream.
func (s costlyStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	if _, err := s.ticket.takeSlot(s.Context()); err != nil {
		return Status(s.Context(), err)
	}
	return nil
}

// SendMsg implements grpc.ServerStream.
func (s costlyStream) SendMsg(m any) error {
	defer Away(s.Context())()
	return s.ServerStream.SendMsg(m)
}

func (cfg Config) observeStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	start := time.Now()
	err := next(srv, ss)
	cfg.observe(info.FullMethod, err, start)
	cfg.logCall(ss.Context(), info.FullMethod, err, start)
	return err
}

func (cfg Config) observe(method string, err error, start time.Time) {
	if cfg.Observe != nil {
		cfg.Observe(method, status.Code(err).String(), time.Since(start))
	}
}

// logCall logs a call at the level that its code has. Few calls have a level that is
// logged, so the line is put together only for these.
func (cfg Config) logCall(ctx context.Context, method string, err error, start time.Time) {
	code := status.Code(err)
	level := slog.Level(logging.DefaultServerCodeToLevel(code))
	if level == slog.LevelInfo || code == codes.Unknown {
		// Ordinary calls. Unknown is what readers of podresources get for a pod that is
		// not there, as from the kubelet; no error of berth's has it.
		level = slog.LevelDebug
	}
	if !cfg.Log.Enabled(ctx, level) {
		return
	}
	omitted := int64(0)
	if level > slog.LevelDebug && !cfg.trusts(ctx) {
		var ok bool
		if omitted, ok = cfg.lines.next(); !ok {
			return
		}
	}
	service, name, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	fields := append(logFields(ctx), "grpc.service", service, "grpc.method", name, "grpc.code", code.String())
	if err != nil {
		fields = append(fields, "grpc.error", err.Error())
	}
	if omitted > 0 {
		fields = append(fields, "omitted", omitted)
	}
	cfg.Log.Log(ctx, level, "finished call", append(fields, "grpc.time_ms", float64(time.Since(start).Microseconds())/1000)...)
}

// trusts reports whether a call is root's or that of berthd's own user.
func (cfg Config) trusts(ctx context.Context) bool {
	who, ok := PeerOf(ctx)
	return ok && who.UID == 0 && !who.Page || ok && cfg.Access != nil && cfg.Access.trusts(who)
}

// logFields are the caller and the request's id, for a log line.
func logFields(ctx context.Context) []any {
	fields := []any{"request_id", RequestID(ctx)}
	if who, ok := PeerOf(ctx); ok {
		fields = append(fields, "peer", who.String())
	}
	return fields
}

// RequestIDHeader is the metadata key of the id that a caller gives its request. The answer has no id, except in the details of
// an error.
const RequestIDHeader = "x-request-id"

type requestIDKey struct{}

// RequestID returns the id of the request that a context belongs to.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// NewID makes a random id of 26 characters.
func NewID() string { return rand.Text() }

// maxRequestID bounds a caller's own id.
const maxRequestID = 128

// withRequestID takes the caller's id if it is a sane one, or makes one up.
func withRequestID(ctx context.Context) context.Context {
	if given := metadata.ValueFromIncomingContext(ctx, RequestIDHeader); len(given) == 1 && sane(given[0]) {
		return context.WithValue(ctx, requestIDKey{}, given[0])
	}
	return context.WithValue(ctx, requestIDKey{}, NewID())
}

// sane reports whether a text can go into logs, headers and messages as it is.
func sane(id string) bool {
	unprintable := func(r rune) bool { return r <= ' ' || r > '~' }
	return id != "" && len(id) <= maxRequestID && !strings.ContainsFunc(id, unprintable)
}

// streamWithContext is a stream with another context.
type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWithContext) Context() context.Context { return s.ctx }

func requestIDStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, streamWithContext{ss, withRequestID(ss.Context())})
}
