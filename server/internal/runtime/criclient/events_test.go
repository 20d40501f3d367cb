package criclient_test

import (
	"context"
	"testing"

	"github.com/berthd/berth/hack/testing/cri"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/runtime"
	"github.com/berthd/berth/server/internal/runtime/criclient"
)

// listener receives the events of a runtime.
type listener struct {
	events chan runtime.Event
	ended  chan error
	stop   context.CancelFunc
}

func listen(ctx context.Context, c *criclient.Client) *listener {
	ctx, cancel := context.WithCancel(ctx)
	l := &listener{events: make(chan runtime.Event, 1000), ended: make(chan error, 1), stop: cancel}
	go func() {
		l.ended <- c.Events(ctx, func(e runtime.Event) {
			select {
			case l.events <- e:
			default: // more than the test reads
			}
		})
	}()
	return l
}

// expect waits for an event.
func (l *listener) expect(ctx context.Context, t *testing.T, want runtime.Event) {
	t.Helper()
	for {
		select {
		case got := <-l.events:
			if got == want {
				return
			}
		case err := <-l.ended:
			t.Fatalf("the stream has ended: %v", err)
		case <-ctx.Done():
			t.Fatalf("no event %+v", want)
		}
	}
}

// Every listener gets every event, and a stream that is cut off is an error that may pass.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := cri.New(cri.Config{Images: []string{"probe"}, Events: true})
	socket, _ := serve(t, s)
	b := newBench(t, socket)
	b.parent = "/kubepods"
	one, two := listen(t.Context(), b.client), listen(t.Context(), newBench(t, socket).client)
	for s.Listeners() < 2 {
		if _, err := b.client.About(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	holdsEvents(t.Context(), b, one, two)
	s.CutEvents()
	for _, l := range []*listener{one, two} {
		if err := <-l.ended; errdefs.ClassOf(err) != errdefs.Unavailable {
			t.Errorf("cut off: %v", err)
		}
		l.stop()
	}
}

// holdsEvents expects the events of a sandbox and of a container at all listeners.
func holdsEvents(ctx context.Context, b *bench, listeners ...*listener) {
	b.t.Helper()
	create := b.pod(ctx, "loud")
	id := create("main", "wait")
	sandboxes, err := b.client.Sandboxes(ctx, "loud")
	if err != nil || len(sandboxes) != 1 {
		b.t.Fatal(sandboxes, err)
	}
	b.start(ctx, id)
	for _, l := range listeners {
		for _, of := range []string{sandboxes[0].ID, id, id} { // created and started
			l.expect(ctx, b.t, runtime.Event{ID: of, Pod: "loud"})
		}
	}
	b.stopPod(ctx, sandboxes[0].ID)
	for _, l := range listeners {
		l.expect(ctx, b.t, runtime.Event{ID: id, Pod: "loud"})
	}
}

// A runtime without events, and one that gives each event to one listener only, are not
// listened to.
func TestNoEvents(t *testing.T) {
	t.Parallel()
	for name, config := range map[string]cri.Config{
		"none":              {},
		"for one listener":  {Events: true, Name: "containerd", Version: "v1.7.27"},
		"without a \"v\"":   {Events: true, Name: "containerd", Version: "1.6.20"},
		"of another distro": {Events: true, Name: "containerd", Version: "1.6.20~ds1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cri.New(config)
			socket, _ := serve(t, s)
			err := newBench(t, socket).client.Events(t.Context(), func(runtime.Event) {})
			if errdefs.ClassOf(err) != errdefs.Unsupported || s.Calls("GetContainerEvents") > 0 {
				t.Errorf("%v, after %d calls", err, s.Calls("GetContainerEvents"))
			}
		})
	}
}
