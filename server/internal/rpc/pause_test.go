package rpc

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/emptypb"
)

const streamDump = "/berth.inspect.v1.InspectService/StreamDump"

// begun is a call that the limiter let in, with its context.
func (c *limiter) begun(t *testing.T, uid uint32, method string) context.Context {
	t.Helper()
	_, ctx, err := c.dial(t, uid)
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(ctx)
	t.Cleanup(end)
	if ctx, err = c.tap(ctx, &tap.Info{FullMethodName: method}); err != nil {
		t.Fatal(err)
	}
	return ctx
}

// TestWaitingCallsLeaveTheirSlot: while a dry run waits for a plugin, a provider or another
// call, other users have its slot; its own user begins no other costly call. It continues with
// a slot.
func TestWaitingCallsLeaveTheirSlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bounded(io.Discard)
		cfg := Config{limiter: c}
		var ran []string
		call := func(uid uint32, name string, handler func(ctx context.Context)) {
			ctx := c.begun(t, uid, list)
			go func() {
				_, err := cfg.gateUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: list}, func(ctx context.Context, _ any) (any, error) {
					ran = append(ran, name)
					handler(ctx)
					return &emptypb.Empty{}, nil
				})
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		expect := func(when string, want ...string) {
			t.Helper()
			if synctest.Wait(); len(ran) != len(want) || len(want) > 0 && ran[len(ran)-1] != want[len(want)-1] {
				t.Fatalf("%s: %q began, want %q", when, ran, want)
			}
		}
		answer, ends := make(chan struct{}), make(chan struct{})
		call(reader, "first", func(ctx context.Context) {
			back := Away(ctx)
			<-answer
			back()
			ran = append(ran, "first goes on")
			EndTurn(ctx)
			<-answer
		})
		call(reader, "second", func(context.Context) {})
		expect("beside the reader's first call", "first")
		call(agent, "agent", func(context.Context) { <-ends })
		expect("while the first waits", "first", "agent")
		answer <- struct{}{}
		expect("while the agent runs", "first", "agent")
		ends <- struct{}{}
		expect("after the agent", "first", "agent", "first goes on")
		call(agent, "agent again", func(context.Context) {})
		expect("while the first waits for another call", "first", "agent", "first goes on", "agent again")
		answer <- struct{}{}
		expect("after the first", "first", "agent", "first goes on", "agent again", "second")
		if len(c.slots.users) != 0 || c.slots.free != 1 {
			t.Errorf("left: %v, %d free", c.slots.users, c.slots.free)
		}
	})
}

// slow is a stream whose request comes when it is sent, and whose messages are read then.
type slow struct {
	grpc.ServerStream
	ctx       context.Context
	sent, get chan struct{}
}

func (s slow) Context() context.Context { return s.ctx }

func (s slow) RecvMsg(any) error { return s.wait(s.sent) }

func (s slow) SendMsg(any) error { return s.wait(s.get) }

func (s slow) wait(c chan struct{}) error {
	select {
	case <-c:
		return nil
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
}

// TestStreamsHaveTheirSlotWhileTheyRun: neither before their request comes, nor while the client
// does not read what they send.
func TestStreamsHaveTheirSlotWhileTheyRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bounded(io.Discard)
		cfg := Config{limiter: c, Ceiling: 1 << 40}
		s := slow{ctx: c.begun(t, admin, streamDump), sent: make(chan struct{}), get: make(chan struct{})}
		works, ended := make(chan struct{}), false
		go func() {
			err := cfg.gateStream(nil, s, &grpc.StreamServerInfo{FullMethod: streamDump}, func(_ any, s grpc.ServerStream) error {
				err := s.RecvMsg(nil)
				<-works
				return errors.Join(err, s.SendMsg(nil), s.SendMsg(nil))
			})
			if err != nil {
				t.Error(err)
			}
			ended = true
		}()
		for _, step := range []struct {
			name string
			do   func()
			free int
		}{
			{"before the request", func() {}, 1},
			{"while it runs", func() { s.sent <- struct{}{} }, 0},
			{"while nobody reads", func() { works <- struct{}{} }, 1},
			{"while nobody reads the second part", func() { s.get <- struct{}{} }, 1},
			{"when it is over", func() { s.get <- struct{}{} }, 1},
		} {
			step.do()
			if synctest.Wait(); c.slots.free != step.free {
				t.Errorf("%s: %d slots are free, want %d", step.name, c.slots.free, step.free)
			}
		}
		if !ended || len(c.slots.users) != 0 {
			t.Errorf("ended: %t; left: %v", ended, c.slots.users)
		}
	})
}
