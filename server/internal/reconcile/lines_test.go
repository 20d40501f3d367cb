package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
)

// logged has a bench write its log lines above debug into a buffer.
func (b *bench) logged() *bytes.Buffer {
	var text bytes.Buffer
	b.Log = slog.New(slog.NewTextHandler(&text, nil))
	return &text
}

// An outage of the runtime makes one line, and its end another, whatever error the connection has
// from call to call, and however many containers there are.
func TestOneLineForAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now, b.Every = time.Now, 10*time.Second
		for i := range 30 {
			id := fmt.Sprint("a", i)
			d.create(id, "a", "0-3")
			b.must(b.prestart(id, "a"))
			d.start(t, id)
		}
		b.pass()
		text := b.logged()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		for i, says := range []error{
			errdefs.Unavailablef("error reading from server: EOF"), errdefs.Unavailablef("connection refused"),
			errdefs.Unavailablef("no such file or directory"), errdefs.Deadlinef("no answer"), nil,
		} {
			time.AfterFunc(time.Duration(i+1)*5*time.Second, func() { d.set(func() { d.fail = says }); b.Wake() })
			time.AfterFunc(time.Duration(i+1)*5*time.Second+time.Second, func() { // meanwhile the ledger continues
				b.admit(fmt.Sprint("p", i), "Burstable", cpus(100))
				b.Wake()
			})
		}
		if err := b.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		lines := strings.Split(strings.TrimSpace(text.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "level=ERROR") || !strings.Contains(lines[1], "level=INFO") {
			t.Errorf("an outage makes these lines:\n%s", text)
		}
	})
}

// A slow update continues in the background, which is no failure.
func TestNoLineForASlowUpdate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b, d := newFakeRuntime(t, memtree.V1())
		b.Now, b.Every = time.Now, 10*time.Second
		for _, id := range []string{"a0", "a1"} {
			d.create(id, "a", "0-3")
			b.must(b.prestart(id, "a"))
			d.start(t, id)
		}
		b.pass()
		text := b.logged()
		d.set(func() { d.hang = map[string]bool{"a0": true, "a1": true} })
		b.own() // both have to move
		b.Wake()
		time.AfterFunc(3*time.Second, func() {
			d.set(func() { delete(d.hang, "a0") })
			d.release("a1")
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Run(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if text.Len() > 0 {
			t.Errorf("the log says:\n%s", text)
		}
		b.on("a", "a0", "0-1")
		b.on("a", "a1", "0-1")
	})
}

// The life of a container makes no line above debug, with a runtime and without one, reported by
// the agent, found in a list, or both.
func TestNoLinesForContainers(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.pass()
	text := b.logged()
	for i := range 10 {
		id := fmt.Sprint("a", i)
		d.create(id, "a", "0-3")
		if i%2 == 0 {
			b.must(b.prestart(id, "a"))
		}
		d.start(t, id)
		b.pass()
		b.must(b.Follow(t.Context()))
		d.set(func() { d.boxes[id].Phase = runtime.Exited })
		b.must(b.tree.Remove(t.Context(), d.boxes[id].Cgroup))
		if i%3 == 0 {
			b.update(func(d *ledger.Draft) { d.Unbind(id) })
		}
		b.pass()
	}
	if text.Len() > 0 {
		t.Errorf("containers come and go, and the log says:\n%s", text)
	}
}

// A warning about a container names it and its pod.
func TestWarningsNameTheContainer(t *testing.T) {
	t.Parallel()
	wide := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(3)}}
	t.Run("drift beside a runtime", func(t *testing.T) {
		t.Parallel()
		b, d := newFakeRuntime(t, memtree.V1())
		d.create("a1", "a", "0-3")
		b.must(b.prestart("a1", "a"))
		d.start(t, "a1")
		b.pass()
		text := b.logged()
		b.set("/kubepods/poda/a1", wide)
		b.pass()
		if line := text.String(); strings.Count(line, "level=WARN") != 1 || !strings.Contains(line, "pod=a container=c ") {
			t.Errorf("the log says:\n%s", line)
		}
	})
	t.Run("a container outside of its pod", func(t *testing.T) {
		t.Parallel()
		b, d := newFakeRuntime(t, memtree.V1())
		b.set("/elsewhere", cgroup.Values{})
		d.create("a1", "a", "0-3")
		d.boxes["a1"].Cgroup = name("/elsewhere/a1")
		b.must(b.prestart("a1", "a"))
		d.start(t, "a1")
		b.pass()
		text := b.logged()
		b.must(b.RemovePod(t.Context(), b.ledger.View(), "a"))
		if line := text.String(); strings.Count(line, "level=WARN") != 1 || !strings.Contains(line, "container=a/c ") {
			t.Errorf("the log says:\n%s", line)
		}
	})
}

// A start that waits longer than a second is logged once, with those that it waits for; a shorter
// wait is not.
func TestOneLineForALongWait(t *testing.T) {
	t.Parallel()
	for waits, lines := range map[time.Duration]int{longWait / 2: 0, 3 * longWait: 1} {
		synctest.Test(t, func(t *testing.T) {
			b, d := newFakeRuntime(t, memtree.V1())
			b.Now = time.Now
			text := b.logged()
			d.create("a1", "a", "0-3")
			b.must(b.prestart("a1", "a")) // it may start on all CPUs until it is seen
			b.own()
			ended := make(chan error, 1)
			go func() {
				_, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box("own1", "own")})
				ended <- err
			}()
			time.Sleep(waits)
			d.start(t, "a1")
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			got := strings.Count(text.String(), "waits for containers to leave its CPUs")
			if got != lines || lines > 0 && !strings.Contains(text.String(), "container a/c, which is") {
				t.Errorf("after a wait of %s the log has %d lines, want %d:\n%s", waits, got, lines, text.String())
			}
		})
	}
}
