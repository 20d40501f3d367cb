package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/runtime"
)

// notifier is a Runtime with a stream of events; *runtime.Client is one.
type notifier interface {
	Events(ctx context.Context, do func(runtime.Event)) error
}

// events are changes that a runtime has reported since the last turn. An event only selects
// what is listed next: what it says of a container is taken from the list. The zero value is
// empty.
type events struct {
	mu   sync.Mutex
	ids  map[string]string // the pod of each container or sandbox, by its id
	lost bool              // events may have been lost: all is listed
}

// maxEvents bounds the containers and sandboxes with events in one turn.
const maxEvents = 4096

func (e *events) add(one runtime.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ids == nil:
		e.ids = map[string]string{}
	case len(e.ids) == maxEvents:
		e.ids, e.lost = map[string]string{}, true
	}
	e.ids[one.ID] = one.Pod
}

func (e *events) lose() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.lost = true
}

// putBack keeps what a turn could not list for the next one; nil ids mean all.
func (e *events) putBack(ids, pods []string) {
	if ids == nil {
		e.lose()
		return
	}
	for _, id := range ids {
		e.add(runtime.Event{ID: id})
	}
	for _, uid := range pods {
		e.add(runtime.Event{ID: uid, Pod: uid}) // the id of a sandbox is only a unique key
	}
}

// take returns the events that concern a view, and forgets all: containers that are bound, and
// the pods in the ledger of others, which may be sandboxes.
func (e *events) take(view *ledger.View) (ids, pods []string, lost bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, pod := range e.ids {
		if _, bound := view.Binding(id); bound {
			ids = append(ids, id)
		} else if _, known := view.Pod(pod); known {
			pods = append(pods, pod)
		}
	}
	lost = e.lost
	e.ids, e.lost = nil, false
	return ids, pods, lost
}

// Waits until a lost stream of events is opened again; they double.
const firstListen, lastListen = time.Second, time.Minute

// listen receives the events of the runtime, if it has some, until ctx ends. Events of the
// time before a stream is opened are lost.
func (e *events) listen(ctx context.Context, r Runtime, log *slog.Logger, wake func()) {
	from, ok := r.(notifier)
	if !ok {
		return
	}
	wait := firstListen
	for ctx.Err() == nil {
		first := true
		err := from.Events(ctx, func(one runtime.Event) {
			if first {
				e.lose()
				first, wait = false, firstListen
			}
			e.add(one)
			wake()
		})
		switch {
		case ctx.Err() != nil:
			return
		case errdefs.ClassOf(err) == errdefs.Unsupported:
			log.DebugContext(ctx, "the container runtime has no events for several listeners", "error", err)
			return
		}
		log.DebugContext(ctx, "the events of the container runtime are lost", "error", err)
		e.lose()
		wake()
		again := time.NewTimer(wait)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
		}
		wait = min(2*wait, lastListen)
	}
}
