package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/podspec"
)

// soon is how long a worker waits for what a signal should bring about before it
// looks again.
const soon = time.Second

// worker deals with one pod.
type worker struct {
	*Agent
	uid      string
	manifest podspec.Manifest
	wanted   lifecycle.Pod
	log      *slog.Logger
	woken    chan struct{}

	mu        sync.Mutex // guards what is asked of the worker from outside
	deleted   bool       // the pod is to go
	uncertain bool       // berthd was away: is the pod known there?
	released  bool       // the pod's place was given back; the record says so when its sandbox is gone too

	// The rest belongs to the worker's goroutine.
	rec      *record
	saved    []byte // the record as it is on disk
	wait     lifecycle.Trouble
	waiting  map[string]string
	phase    lifecycle.PodPhase
	unplaced bool // berthd does not know the pod: what runs has to be bound again
}

func (a *Agent) newWorker(m podspec.Manifest, rec *record) *worker {
	uid := m.Pod.GetMetadata().GetUid()
	w := &worker{
		Agent: a, uid: uid, manifest: m, wanted: wanted(m), rec: rec, released: rec.Released, woken: make(chan struct{}, 1),
		log: a.Log.With("pod", m.Pod.GetMetadata().GetNamespace()+"/"+m.Pod.GetMetadata().GetName(), "uid", uid),
	}
	plan := lifecycle.Next(w.wanted, rec.state(w.wait), w.Crash, w.Now())
	w.phase, w.waiting = plan.Phase, plan.Waiting
	return w
}

// wake lets the worker look again.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // it will look anyway
	}
}

// remove tells the worker that its pod is not wanted any more.
func (w *worker) remove() {
	w.mu.Lock()
	w.deleted = true
	w.mu.Unlock()
	w.wake()
}

// markUncertain tells the worker that berthd may have forgotten its pod.
func (w *worker) markUncertain() {
	w.mu.Lock()
	w.uncertain = true
	w.mu.Unlock()
	w.wake()
}

// over reports whether the pod's place was given back.
func (w *worker) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released
}

// never is a time to wake at that does not come.
const never = 1 << 62

// run makes passes until the pod is gone, which it tells, or the context ends. The
// containers of a pod that is not gone go on.
func (w *worker) run(ctx context.Context) (gone bool) {
	timer := time.NewTimer(never)
	defer timer.Stop()
	for {
		next, gone := w.pass(ctx)
		if gone || ctx.Err() != nil {
			return gone
		}
		if next.IsZero() {
			timer.Reset(never)
		} else {
			timer.Reset(next.Sub(w.Now()))
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.woken:
		case <-timer.C:
		}
	}
}

// pass looks, plans and does. It returns when to look again at the latest, zero
// for not before something happens, and whether the pod is gone for good.
func (w *worker) pass(ctx context.Context) (next time.Time, gone bool) {
	for ctx.Err() == nil {
		w.heed()
		if err := w.look(ctx); err != nil {
			w.log.Error("look at the containers", "error", err)
			return w.Now().Add(soon), false
		}
		plan := lifecycle.Next(w.wanted, w.rec.state(w.wait), w.Crash, w.Now())
		w.phase, w.waiting = plan.Phase, plan.Waiting
		if w.rec.Released && !w.rec.Deleted.IsZero() {
			w.forget()
			return time.Time{}, true
		}
		if err := w.keep(); err != nil {
			w.log.Error("keep the record", "error", err)
			return w.Now().Add(soon), false
		}
		again := false
		next = plan.Wake
		for _, step := range plan.Steps {
			if w.do(ctx, step) {
				again = true
			} else if at := w.Now().Add(soon); next.IsZero() || at.Before(next) {
				next = at
			}
		}
		if !again {
			return next, false
		}
	}
	return time.Time{}, false
}

// heed takes over what was asked from outside.
func (w *worker) heed() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleted && w.rec.Deleted.IsZero() {
		w.rec.Deleted = w.Now()
		w.log.Info("the pod is to go")
	}
	if w.uncertain && w.rec.Verdict == lifecycle.Admitted && !w.released && w.rec.Deleted.IsZero() {
		w.rec.Verdict, w.wait = lifecycle.Unasked, lifecycle.Trouble{}
	}
	w.uncertain = false
}

// look takes over what the runtime tells, and tells berthd of what has exited.
func (w *worker) look(ctx context.Context) error {
	if w.rec.Released {
		return nil
	}
	statuses, err := w.Runtime.List(ctx, w.uid)
	if err != nil {
		return err
	}
	w.rec.observe(statuses, w.Now())
	for name, p := range w.rec.Containers {
		if p.Seen.Phase == lifecycle.Exited && !p.Unbound {
			if err := w.unbind(ctx, p); err != nil {
				// It will be said again before the next attempt, or with the pod's end.
				w.log.Warn("report a container's exit to berthd", "container", name, "error", err)
			}
		}
	}
	return nil
}

// keep writes the record if it has changed, and publishes the status.
func (w *worker) keep() error {
	var err error
	w.saved, err = w.rec.save(w.place.pod(w.uid), w.saved)
	w.publish(w.status())
	return err
}

// forget removes what is left of a pod that was released and is not wanted.
func (w *worker) forget() {
	err := errors.Join(os.RemoveAll(w.place.podLogs(w.manifest)), os.RemoveAll(w.place.pod(w.uid)))
	if err != nil {
		w.log.Error("remove the files of a pod", "error", err)
	}
	w.log.Info("the pod is gone")
}
