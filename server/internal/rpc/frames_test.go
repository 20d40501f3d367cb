package rpc

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/tap"
)

// TestFramesArePaced: frames that are no part of a call are read at a bounded rate by user,
// whatever connections they come on, those of calls at once, and the end of a connection
// ends the wait.
func TestFramesArePaced(t *testing.T) {
	t.Parallel()
	settings, data := []byte{0, 0, 0, 4, 0, 0, 0, 0, 0}, []byte{0, 0, 1, 0, 0, 0, 0, 0, 1, 'x'}
	synctest.Test(t, func(t *testing.T) {
		l := &load{answers: &room{}, frames: newFrameLimit(), open: map[*counted]struct{}{}}
		// read measures how long it takes to read frames on a connection of their own.
		read := func(frames []byte) time.Duration {
			near, far := net.Pipe()
			c := l.opened(near, func() {})
			go func() { _, _ = far.Write(append(make([]byte, preface), frames...)); _ = far.Close() }()
			begun := time.Now()
			if n, err := io.Copy(io.Discard, c); err != nil || n != int64(preface+len(frames)) {
				t.Errorf("%d bytes, %v", n, err)
			}
			return time.Since(begun)
		}
		if took := read(bytes.Repeat(data, 100_000)); took != 0 {
			t.Errorf("frames of calls took %s", took)
		}
		if took := read(bytes.Repeat(settings, framesBurst)); took != 0 {
			t.Errorf("a few frames took %s", took)
		}
		for range 2 {
			if took := read(bytes.Repeat(settings, framesPerSecond)); took < 990*time.Millisecond || took > 1010*time.Millisecond {
				t.Errorf("as many frames as may come in a second took %s", took)
			}
		}
		near, far := net.Pipe()
		c := l.opened(near, func() {})
		go func() {
			_, _ = far.Write(append(make([]byte, preface), bytes.Repeat(settings, 100*framesPerSecond)...))
		}()
		ended := false
		go func() { _, _ = io.Copy(io.Discard, c); ended = true }()
		synctest.Wait()
		if ended {
			t.Error("a flood is read at once")
		}
		_, _ = c.Close(), far.Close()
		if synctest.Wait(); !ended {
			t.Error("the connection has ended, and somebody waits")
		}
	})
}

// TestRefusalsArePaced: calls that are refused before their message is read come at a bounded
// rate by user, on whatever connections; root's are not refused.
func TestRefusalsArePaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 3 * (maxRefusals - 1) // with more the connections end
		for _, row := range []struct {
			name  string
			uid   uint32
			calls int // that are under way before
			want  time.Duration
		}{
			{"without a role", unprivileged, 0, (many - framesBurst/refusalCost) * time.Second / (framesPerSecond / refusalCost)},
			{"too many calls", reader, 5, (many - framesBurst/refusalCost) * time.Second / (framesPerSecond / refusalCost)},
			{"root", root, 0, 0},
		} {
			c := bounded(io.Discard)
			var links []context.Context
			for range 3 {
				_, ctx, err := c.dial(t, row.uid)
				if err != nil {
					t.Fatal(err)
				}
				ctx, end := context.WithCancel(ctx)
				t.Cleanup(end)
				links = append(links, ctx)
			}
			for range row.calls {
				if _, err := c.tap(links[0], &tap.Info{FullMethodName: list}); err != nil {
					t.Fatal(err)
				}
			}
			begun := time.Now()
			for i := range many {
				if _, err := c.tap(links[i%len(links)], &tap.Info{FullMethodName: list}); (err == nil) != (row.uid == root) {
					t.Fatalf("%s: %v", row.name, err)
				}
			}
			if took := time.Since(begun); took < row.want || took > row.want+10*time.Millisecond {
				t.Errorf("%s: %d refusals took %s, want %s", row.name, many, took, row.want)
			}
		}
	})
}
