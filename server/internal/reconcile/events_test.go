package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
)

// after follows the ledger after an event, and returns the lists that it took.
func (b *bench) after(d *fakeRuntime, events ...runtime.Event) [][]string {
	b.t.Helper()
	d.mu.Lock()
	d.asked = nil
	d.mu.Unlock()
	for _, e := range events {
		b.lister.changes.add(e)
	}
	b.must(b.Follow(b.t.Context()))
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

// The event of a sandbox puts it on the shared CPUs, before any container of its pod is
// started, and lists no container.
func TestEventOfASandbox(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V1())
	b.own()
	b.pass()
	path := b.sandbox("a")
	b.must(b.Follow(t.Context()))
	b.shows(path, "0-3") // it is not known
	if asked := b.after(d, runtime.Event{ID: "a-sandbox", Pod: "a"}, runtime.Event{ID: "other", Pod: "unknown"}); len(asked) > 0 {
		t.Errorf("containers were listed: %q", asked)
	}
	b.shows(path, "0-1")
}

// The event of a container lists this container only. Its end unbinds it.
func TestEventOfAContainer(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	b.bind("a1", "a")
	d.start(t, "a1")
	b.must(b.Follow(t.Context()))
	d.mu.Lock()
	d.boxes["a1"].Phase = runtime.Exited
	d.mu.Unlock()
	if asked := b.after(d, runtime.Event{ID: "a1", Pod: "a"}); len(asked) != 1 || !slices.Equal(asked[0], []string{"a1"}) {
		t.Errorf("listed were %q", asked)
	}
	b.bound()
	if asked := b.after(d, runtime.Event{ID: "a1", Pod: "a"}); slices.ContainsFunc(asked, func(ids []string) bool { return len(ids) > 0 }) {
		t.Errorf("after its end: listed were %q", asked)
	}
}

// Too many events for one turn take bounded memory, and all containers are listed.
func TestManyEvents(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	b.bind("a1", "a")
	b.must(b.Follow(t.Context()))
	many := []runtime.Event{{ID: "a1", Pod: "a"}}
	for i := range 3 * maxEvents {
		many = append(many, runtime.Event{ID: fmt.Sprint("other", i), Pod: "unknown"})
	}
	for _, e := range many {
		if b.lister.changes.add(e); len(b.lister.changes.ids) > maxEvents {
			t.Fatalf("%d events are kept", len(b.lister.changes.ids))
		}
	}
	if asked := b.after(d); len(asked) != 1 || len(asked[0]) != 0 {
		t.Errorf("listed were %q", asked)
	}
}

// An event alone is not used: the list counts.
func TestEventIsNoFact(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	b.bind("a1", "a")
	d.start(t, "a1")
	b.after(d, runtime.Event{ID: "a1", Pod: "other"})
	b.bound("a1")
	b.own()
	b.must(b.prestart("own1", "own"))
	b.shows("/kubepods/poda/a1", "0-1")
}

// streams is a runtime with streams of events.
type streams struct {
	*fakeRuntime
	opened atomic.Int32
	stream func(n int32, ctx context.Context, do func(runtime.Event)) error
}

func (s *streams) Events(ctx context.Context, do func(runtime.Event)) error {
	return s.stream(s.opened.Add(1), ctx, do)
}

// A lost stream is opened again, and everything is listed: after the loss, and with the first
// event of the new stream. One that is not supported is opened once.
func TestLostStreamOfEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		d := &fakeRuntime{boxes: map[string]*fakeContainer{}}
		s := &streams{fakeRuntime: d}
		b := newBench(t, memtree.V1(), func(c *Config) { c.Runtime = s })
		d.tree = b.tree
		b.Bindings = admission.New(admission.Config{}, admission.Parts{Ledger: b.ledger})
		var lost []bool
		take := func() {
			_, _, all := b.lister.changes.take(b.ledger.View())
			lost = append(lost, all)
		}
		s.stream = func(n int32, ctx context.Context, do func(runtime.Event)) error {
			switch n {
			case 1:
				do(runtime.Event{ID: "x"})
				take() // what was before the stream is not known
				do(runtime.Event{ID: "x"})
				take()
				return errors.New("cut off")
			case 2:
				take() // what was during the loss is not known
				return errors.New("cut off again")
			case 3:
				return errdefs.Unsupportedf("no events")
			}
			t.Error("opened again")
			return nil
		}
		start := time.Now()
		b.lister.changes.listen(ctx, b.Runtime, b.Log, b.Wake)
		if want := []bool{true, false, true}; !slices.Equal(lost, want) {
			t.Errorf("all was to be listed: %v, want %v", lost, want)
		}
		if took := time.Since(start); took != 3*time.Second {
			t.Errorf("waited for %s", took)
		}
		cancel()
	})
}

// Without a complete stream, all containers are listed.
func TestLostEventsListAll(t *testing.T) {
	t.Parallel()
	b, d := asked(t)
	b.lister.changes.lose()
	if asked := b.after(d, runtime.Event{ID: "a1", Pod: "a"}); len(asked) != 1 || len(asked[0]) != 0 {
		t.Errorf("listed were %q, want all", asked)
	}
	b.update(func(d *ledger.Draft) { d.RemovePod("a") })
}
