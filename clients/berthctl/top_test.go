package main

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/internal/command"
)

// fakeScreen is a terminal of a size.
type fakeScreen struct{ restored bool }

func (f *fakeScreen) Raw() (restore func(), err error) {
	return func() { f.restored = true }, nil
}

func (f *fakeScreen) Size() (width, height int) { return 120, 90 }

// recorder keeps the frames, and waits for one with a text.
type recorder struct {
	mu    sync.Mutex
	all   bytes.Buffer
	wait  string
	found chan struct{}
}

func (r *recorder) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.wait != "" && bytes.Contains(p, []byte(r.wait)) {
		r.wait = ""
		close(r.found)
	}
	return r.all.Write(p)
}

// until waits for a frame with a text.
func (r *recorder) until(t *testing.T, text string, do func()) {
	t.Helper()
	r.mu.Lock()
	r.wait, r.found = text, make(chan struct{})
	found := r.found
	r.mu.Unlock()
	do()
	select {
	case <-found:
	case <-time.After(time.Minute):
		t.Fatalf("no frame has %q", text)
	}
}

// TestTopLive: pods come by Watch and usage by readings, keys open a pod and end the program, and
// the terminal is restored.
func TestTopLive(t *testing.T) {
	t.Parallel()
	f := &fake{streams: &streams{left: []watched{{commits: life()[:2]}}}}
	path := f.start(t)
	client, err := berth.Dial(t.Context(), path, berth.Options{Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	in, keys := io.Pipe()
	out, screen := &recorder{}, &fakeScreen{}
	s := &command.Session{Ctl: &command.Ctl{Env: command.Env{In: in, Out: out, Err: io.Discard, Now: func() time.Time { return testNow }},
		Format: command.FormatTable}, Client: client}
	ended := make(chan error, 1)
	press := func(text string) {
		if _, err := io.WriteString(keys, text); err != nil {
			t.Error(err)
		}
	}
	out.until(t, "default/web", func() {
		go func() {
			ended <- get.TopLive(t.Context(), s, get.TopFlags{Interval: 10 * time.Millisecond, By: "cpu"}, screen)
		}()
	})
	out.until(t, "1.50", func() {}) // CPU time by two readings
	out.until(t, "node 0 is preferred by all", func() { press("\r") })
	out.until(t, "q quit", func() { press("\x1b") })
	press("q")
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	_ = keys.Close()
	if all := out.all.String(); !screen.restored || !strings.HasSuffix(all, get.LeaveScreen) {
		t.Errorf("restored %v, the end is %q", screen.restored, all[max(0, len(all)-40):])
	}
}

// TestTopEnds: an input that ends, such as a terminal that was closed, ends the program.
func TestTopEnds(t *testing.T) {
	t.Parallel()
	f := &fake{streams: &streams{left: []watched{{commits: life()[:1]}}}}
	client, err := berth.Dial(t.Context(), f.start(t), berth.Options{Attempts: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := &command.Session{Ctl: &command.Ctl{Env: command.Env{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard, Now: time.Now},
		Format: command.FormatTable}, Client: client}
	if err := get.TopLive(ctx, s, get.TopFlags{Interval: time.Second, By: "cpu"}, &fakeScreen{}); err != nil || ctx.Err() != nil {
		t.Errorf("%v, %v", err, ctx.Err())
	}
}
