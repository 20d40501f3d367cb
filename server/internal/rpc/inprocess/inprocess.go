// Package inprocess connects clients to services of the same process, without a socket. There are no users, so what depends on the caller's
// user is not checked.
package inprocess

import (
	"context"
	"io"
	"path"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/server/internal/rpc"
)

// Connection is a grpc.ClientConnInterface and a grpc.ServiceRegistrar. Messages are copied, so that neither side has the other's. Those
// of streams are encoded and decoded, because events come as encoded fields.
type Connection struct {
	gate    Gate
	unary   map[string]unary
	streams map[string]streaming
	ended   context.Context
	end     context.CancelFunc
}

type unary struct {
	impl   any
	method grpc.MethodDesc
}

type streaming struct {
	impl   any
	method grpc.StreamDesc
}

// Gate refuses calls by an error; nil lets all of them through.
type Gate func(method string, req proto.Message) error

// New returns a connection without services.
func New(gate Gate) *Connection {
	c := &Connection{gate: gate, unary: map[string]unary{}, streams: map[string]streaming{}}
	c.ended, c.end = context.WithCancel(context.Background())
	return c
}

// RegisterService implements grpc.ServiceRegistrar.
func (c *Connection) RegisterService(desc *grpc.ServiceDesc, impl any) {
	for _, m := range desc.Methods {
		c.unary[path.Join("/", desc.ServiceName, m.MethodName)] = unary{impl, m}
	}
	for _, s := range desc.Streams {
		c.streams[path.Join("/", desc.ServiceName, s.StreamName)] = streaming{impl, s}
	}
}

// Invoke implements grpc.ClientConnInterface.
func (c *Connection) Invoke(ctx context.Context, method string, req, reply any, _ ...grpc.CallOption) error {
	u, ok := c.unary[method]
	if !ok {
		return status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	if c.gate != nil {
		if err := c.gate(method, req.(proto.Message)); err != nil {
			return rpc.Status(ctx, err)
		}
	}
	answer, err := u.method.Handler(u.impl, ctx, func(to any) error { move(to, req); return nil }, nil)
	if err != nil {
		return rpc.Status(ctx, err)
	}
	return decode(reply.(proto.Message), answer.(proto.Message))
}

// decode copies an answer. Some have fields that are encoded already.
func decode(to, from proto.Message) error {
	if len(from.ProtoReflect().GetUnknown()) == 0 {
		move(to, from)
		return nil
	}
	data, err := proto.Marshal(from)
	if err != nil {
		return err
	}
	return proto.Unmarshal(data, to)
}

// End ends all streams.
func (c *Connection) End() { c.end() }

// move copies a message into an empty one of its type.
func move(to, from any) { proto.Merge(to.(proto.Message), from.(proto.Message)) }

// NewStream implements grpc.ClientConnInterface. Only the server's side can send several messages.
func (c *Connection) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	s, ok := c.streams[method]
	if !ok {
		return nil, status.Errorf(codes.Unimplemented, "unknown method %s", method)
	}
	ctx, cancel := context.WithCancel(ctx)
	return &stream{
		ctx: ctx, requests: make(chan any, 1), answers: make(chan []byte), done: make(chan struct{}),
		gate: func(req any) error {
			if c.gate == nil {
				return nil
			}
			return c.gate(method, req.(proto.Message))
		},
		serve: func(server grpc.ServerStream) error {
			defer cancel()
			defer context.AfterFunc(c.ended, cancel)()
			err := s.method.Handler(s.impl, server)
			if c.ended.Err() != nil {
				return status.Error(codes.Unavailable, "berthd has ended")
			}
			return rpc.Status(ctx, err)
		},
	}, nil
}

// stream is both ends of a stream.
type stream struct {
	ctx      context.Context
	requests chan any
	answers  chan []byte // encoded
	gate     func(req any) error
	serve    func(grpc.ServerStream) error
	begin    sync.Once
	done     chan struct{} // closed after err was set
	err      error
}

// SendMsg implements grpc.ClientStream. The server starts with the request.
func (s *stream) SendMsg(m any) error {
	if err := s.gate(m); err != nil {
		return rpc.Status(s.ctx, err)
	}
	s.requests <- proto.CloneOf(m.(proto.Message))
	s.begin.Do(func() {
		go func() {
			defer close(s.done)
			if s.err = s.serve(serverSide{s}); s.err == nil {
				s.err = io.EOF
			}
		}()
	})
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (s *stream) RecvMsg(m any) error {
	select {
	case answer := <-s.answers:
		return proto.Unmarshal(answer, m.(proto.Message))
	case <-s.done:
		return s.err
	}
}

func (s *stream) CloseSend() error             { return nil }
func (s *stream) Context() context.Context     { return s.ctx }
func (s *stream) Header() (metadata.MD, error) { return nil, nil }
func (s *stream) Trailer() metadata.MD         { return nil }

type serverSide struct{ *stream }

// RecvMsg implements grpc.ServerStream.
func (s serverSide) RecvMsg(m any) error {
	select {
	case request := <-s.requests:
		move(m, request)
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// SendMsg implements grpc.ServerStream.
func (s serverSide) SendMsg(m any) error {
	answer, err := proto.Marshal(m.(proto.Message))
	if err != nil {
		return err
	}
	select {
	case s.answers <- answer:
		return nil
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

func (serverSide) SetHeader(metadata.MD) error  { return nil }
func (serverSide) SendHeader(metadata.MD) error { return nil }
func (serverSide) SetTrailer(metadata.MD)       {}
