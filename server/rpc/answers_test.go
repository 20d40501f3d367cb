package rpc

import (
	"bytes"
	"testing"
	"testing/synctest"

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
			{"an answer", func() { a.add(wrapperspb.Bytes(make([]byte, 118))) }, 100 - headerSize - 120},
			{"one that is shared", func() { a.add(struct{}{}) }, 100 - headerSize - 120},
			{"a ping is answered", func() { a.written(frame(6, 8)) }, 100 - headerSize - 120},
			{"a part is written", func() { a.written(frame(0, 25)) }, 0},
			{"the rest, and more", func() { a.written(frame(0, 200)) }, 100},
			{"another answer", func() { a.add(wrapperspb.Bytes(make([]byte, 98))) }, 100 - headerSize - 100},
			{"the connection ends", a.end, 100},
			{"it is answered afterwards", func() { a.add(wrapperspb.Bytes(make([]byte, 98))); a.written(frame(0, 10)); a.end() }, 100},
		} {
			if step.do(); r.left != step.left {
				t.Errorf("%s: %d left, want %d", step.name, r.left, step.left)
			}
		}
	})
}
