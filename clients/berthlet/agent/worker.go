package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/volume"
)

// soon is how long a worker waits for the effect of a signal before it checks again.
const soon = time.Second

// worker deals with one pod.
type worker struct {
	*Agent
	uid      string
	manifest podspec.Manifest
	wanted   lifecycle.Pod
	log      *slog.Logger
	woken    chan struct{}

	mu        sync.Mutex // guards the requests to the worker
	deleted   bool       // the pod is to go
	uncertain bool       // the connection to berthd was lost: check that it still has the pod
	released  bool       // berthd has removed the pod; the record has it when its sandbox is removed too

	// The rest belongs to the worker's goroutine.
	rec     *record
	saved   []byte // the record as it is on disk
	wait    lifecycle.Trouble
	waiting map[string]string
	phase   lifecycle.PodPhase
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

// wake makes the worker check its pod.
func (w *worker) wake() {
	select {
	case w.woken <- struct{}{}:
	default: // a pass is due already
	}
}

// remove makes the worker end its pod.
func (w *worker) remove() {
	w.mu.Lock()
	w.deleted = true
	w.mu.Unlock()
	w.wake()
}

// markUncertain makes the worker check that berthd still has the pod.
func (w *worker) markUncertain() {
	w.mu.Lock()
	w.uncertain = true
	w.mu.Unlock()
	w.wake()
}

// over reports whether the pod's allocation was released.
func (w *worker) over() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released
}

// never is a time to wake at that does not come.
const never = 1 << 62

// run makes passes until the pod is gone or the context ends, and reports whether the pod is
// gone. Containers of other pods continue.
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

// pass observes, plans and executes steps. next is the latest time of the next pass, or zero if
// only an event requires one. gone means that the pod has been removed.
func (w *worker) pass(ctx context.Context) (next time.Time, gone bool) {
	for ctx.Err() == nil {
		w.applyRequests()
		if err := w.look(ctx); err != nil {
			w.log.Error("observe the containers failed", "error", err)
			return w.Now().Add(soon), false
		}
		plan := lifecycle.Next(w.wanted, w.rec.state(w.wait), w.Crash, w.Now())
		w.phase, w.waiting = plan.Phase, plan.Waiting
		if w.rec.Released && !w.rec.Deleted.IsZero() {
			w.forget()
			return time.Time{}, true
		}
		if err := w.keep(); err != nil {
			w.log.Error("write the record of a pod failed", "error", err)
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

// applyRequests applies the requests to the worker.
func (w *worker) applyRequests() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.deleted && w.rec.Deleted.IsZero() {
		w.rec.Deleted = w.Now()
		w.log.Info("removing the pod")
	}
	if w.uncertain && w.rec.Verdict == lifecycle.Admitted && !w.released && w.rec.Deleted.IsZero() {
		w.rec.Verdict, w.wait = lifecycle.Undecided, lifecycle.Trouble{}
	}
	w.uncertain = false
}

// look updates the record from the runtime, and does what follows from what containers are: it removes the pins of those that have started,
// and reports exits to berthd.
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
		if p.began() && !p.Unpinned {
			// The container has mounts of its own now. A pin that stays longer is a path below
			// the state directory to what may be a directory of the machine.
			if err := w.Volumes.Release(volume.Holder{PodUID: w.uid, Container: name}); err != nil {
				w.log.Warn("remove the pins of a started container failed", "container", name, "error", err)
			} else {
				p.Unpinned = true
			}
		}
		if p.Seen.Phase == lifecycle.Exited && !p.Unbound {
			if err := w.unbind(ctx, p); err != nil {
				// The report is repeated before the next attempt, or at the pod's end.
				w.log.Warn("report a container's exit to berthd failed", "container", name, "error", err)
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

// forget removes the files of a pod that was released and is not wanted.
func (w *worker) forget() {
	err := errors.Join(os.RemoveAll(w.place.podLogs(w.manifest)), os.RemoveAll(w.place.pod(w.uid)))
	if err != nil {
		w.log.Error("remove the files of a pod failed", "error", err)
	}
	w.log.Info("the pod is gone")
}
