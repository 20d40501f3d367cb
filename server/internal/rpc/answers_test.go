package rpc

import (
	"bytes"
	"context"
	"io"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// TestFrames: what is payload of data frames is found, and what others cost, however the bytes are cut.
func TestFrames(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var stream []byte
		want, wantCosts := 0, 0
		for range rapid.IntRange(0, 8).Draw(t, "frames") {
			kind, size := rapid.IntRange(0, 9).Draw(t, "kind"), rapid.IntRange(0, 70_000).Draw(t, "size")
			stream = append(stream, byte(size>>16), byte(size>>8), byte(size), byte(kind), 0, 0, 0, 0, 1)
			stream = append(stream, make([]byte, size)...)
			switch kind {
			case frameData:
				want += size
			case frameHeaders:
			case frameReset:
				wantCosts += resetCost
			default:
				wantCosts++
			}
		}
		f := frames{skip: rapid.IntRange(0, 30).Draw(t, "skip")}
		stream = append(make([]byte, f.skip), stream...)
		got, costs := 0, 0
		for rest := stream; len(rest) > 0; {
			n := rapid.IntRange(1, len(rest)).Draw(t, "cut")
			data, cost := f.follow(rest[:n])
			got, costs = got+data, costs+cost
			rest = rest[n:]
		}
		if got != want || costs != wantCosts {
			t.Fatalf("%d bytes of data, want %d; frames cost %d, want %d", got, want, costs, wantCosts)
		}
	})
}

// TestAnswersKept: answers take room until they are written, or the connection has ended;
// what else is written frees nothing.
func TestAnswersKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &room{left: 100}
		a := answers{room: r}
		frame := func(kind byte, size int) []byte {
			return append([]byte{0, byte(size >> 8), byte(size), kind, 0, 0, 0, 0, 1}, bytes.Repeat([]byte{0}, size)...)
		}
		for _, step := range []struct {
			name string
			do   func()
			left int
		}{
			{"an answer", func() { a.add(120) }, 100 - headerSize - 120},
			{"a ping is answered", func() { a.written(frame(6, 8)) }, 100 - headerSize - 120},
			{"a part is written", func() { a.written(frame(0, 25)) }, 0},
			{"the rest, and more", func() { a.written(frame(0, 200)) }, 100},
			{"another answer", func() { a.add(100) }, 100 - headerSize - 100},
			{"the connection ends", a.end, 100},
			{"it is answered afterwards", func() { a.add(100); a.written(frame(0, 10)); a.end() }, 100},
		} {
			if step.do(); r.left != step.left {
				t.Errorf("%s: %d left, want %d", step.name, r.left, step.left)
			}
		}
	})
}

// TestUnreadAnswersKeepTheSlotFree: calls that wait for the slot together begin one by one,
// each after the earlier answers were counted and enough of them was read; the answers are
// encoded before the next call begins. Other users have the slot meanwhile.
func TestUnreadAnswersKeepTheSlotFree(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := bounded(io.Discard)
		cfg := Config{limiter: c}
		answer := wrapperspb.Bytes(make([]byte, c.bounds.Bytes))
		var mu sync.Mutex // of the next three
		began, answered := map[uint32]int{}, 0
		var latest *counted
		call := func(uid uint32) {
			conn, ctx, err := c.dial(t, uid)
			if err != nil {
				t.Fatal(err)
			}
			ctx, end := context.WithCancel(ctx)
			t.Cleanup(end)
			if ctx, err = c.tap(ctx, &tap.Info{FullMethodName: list}); err != nil {
				t.Fatal(err)
			}
			go func() {
				if _, err := Turn(ctx); err != nil {
					t.Error(err)
				}
				out, err := cfg.gateUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: list}, func(context.Context, any) (any, error) {
					mu.Lock()
					defer mu.Unlock()
					began[uid]++
					if uid != reader {
						return wrapperspb.Bytes(nil), nil
					}
					latest, _ = conn.(*counted)
					return answer, nil
				})
				if ctx.Err() != nil {
					return // the test has failed
				}
				if e, ok := out.(encoded); err != nil || !ok || uid == reader && e.data.Len() < c.bounds.Bytes {
					t.Errorf("answered %T, %v; want an encoded answer", out, err)
				}
				mu.Lock()
				defer mu.Unlock()
				answered++
			}()
			synctest.Wait()
		}
		another := user{id: 77}
		if err := c.slots.enter(t.Context(), another, Peer{}); err != nil { // all calls come while another call has the slot
			t.Fatal(err)
		}
		for range 3 {
			call(reader)
		}
		call(agent)
		c.slots.leave(another)
		for i := range 3 {
			synctest.Wait()
			mu.Lock()
			if began[reader] != i+1 || began[agent] != 1 || answered != i+2 {
				t.Fatalf("after %d answers were read: begun %v, answered %d", i, began, answered)
			}
			last := latest
			mu.Unlock()
			last.answers.end() // all of it is read
		}
	})
}
