package rpc

import (
	"context"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/managers/errdefs"
)

// Server is a gRPC server in berth's frame.
type Server struct {
	*grpc.Server
	reading reading
}

// RegisterService implements grpc.ServiceRegistrar. The messages of the service's calls are read under the bounds of
// their users.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	bounded := *desc
	bounded.Methods = slices.Clone(desc.Methods)
	for i := range bounded.Methods {
		m := &bounded.Methods[i]
		full, handler := "/"+desc.ServiceName+"/"+m.MethodName, m.Handler
		m.Handler = func(srv any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			return handler(srv, ctx, func(m any) error { return s.reading.read(ctx, full, m, decode) }, interceptor)
		}
	}
	s.Server.RegisterService(&bounded, impl)
}

// reading limits the reading of messages: one message of a user at a time. Memory is reserved
// from before the first byte until the call ends. It is the maximum size of a message during
// reading, and then the decoded size.
type reading struct {
	cfg     Config
	limiter *limiter // nil if users are not counted
}

// read has decode read a message.
func (r reading) read(ctx context.Context, method string, m any, decode func(any) error) error {
	start := time.Now()
	l := &letter{message: m, most: math.MaxInt}
	if t, counted := ctx.Value(ticketKey{}).(*ticket); counted {
		l.most, l.exact = r.cfg.current().MaxElements, true
		whole := r.cfg.MaxReceiveBytes
		if err := r.enter(ctx, t, whole); err != nil {
			return r.limiter.refuse(ctx, method, start, err)
		}
		defer func() {
			t.load.reading.leave(1)
			size := l.size() // it may be more than the room that there was
			t.load.bytes.leave(whole - size)
			t.took(size)
		}()
	}
	if err := decode(l); err != nil {
		return err // gRPC has answered
	}
	if t, counted := ctx.Value(ticketKey{}).(*ticket); counted && !l.tooMany {
		ctx, cancel := r.limited(ctx)
		defer cancel()
		if err := t.takeTurn(ctx); err != nil {
			return r.limiter.refuse(ctx, method, start, err)
		}
	}
	if l.tooMany { // of a user whom the limiter counts
		return r.limiter.refuse(ctx, method, start, errdefs.Exhaustedf(
			"the request has more elements (containers, items of lists, entries of maps) than the %d that limits.messageElements allows",
			l.most))
	}
	return nil
}

// enter waits until there is room for a message.
func (r reading) enter(ctx context.Context, t *ticket, size int) error {
	ctx, cancel := r.limited(ctx)
	defer cancel()
	err := t.load.reading.enter(ctx, 1)
	if err == nil {
		if err = t.load.bytes.enter(ctx, size); err != nil {
			t.load.reading.leave(1)
		}
	}
	if err != nil {
		err := errdefs.Exhaustedf("messages of %s have as many bytes as limits.userBytes allows", t.who).Coded(errdefs.TooManyCalls)
		err.RetryAfter = retryAfter
		return err
	}
	return nil
}

// limited returns a context that ends when a call has taken as long as it may.
func (r reading) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if ceiling := r.cfg.ceiling(); ceiling > 0 {
		return context.WithTimeout(ctx, ceiling)
	}
	return ctx, func() {}
}

// readStream is a stream whose messages are read with the limits of its user.
type readStream struct {
	grpc.ServerStream
	method  string
	reading reading
}

// RecvMsg implements grpc.ServerStream.
func (s readStream) RecvMsg(m any) error {
	EndTurn(s.Context())
	return s.reading.read(s.Context(), s.method, m, s.ServerStream.RecvMsg)
}

// SendMsg implements grpc.ServerStream. A message may wait until its reader has read others.
// A stream can last longer than the grants that its call began with.
func (s readStream) SendMsg(m any) error {
	EndTurn(s.Context())
	if t, ok := s.Context().Value(ticketKey{}).(*ticket); ok {
		if err := s.reading.cfg.Access.mayAuthorize(s.Context(), s.method); err != nil {
			return Status(s.Context(), err)
		}
		if err := t.awaitReading(s.Context()); err != nil {
			return err
		}
		switch p := m.(type) {
		case *Shared: // with other streams: it is not this one's
		case proto.Message:
			if t.conn != nil {
				t.conn.answers.add(proto.Size(p))
			}
		}
	}
	return s.ServerStream.SendMsg(m)
}

func (r reading) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	return next(srv, readStream{ss, info.FullMethod, r})
}
