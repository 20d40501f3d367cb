package agent

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/manifest"
	"github.com/berthd/berth/clients/berthlet/volume"
)

// Config configures an agent.
type Config struct {
	Node    Node
	Runtime container.Runtime
	// Dir is where the agent keeps its records and the volumes of pods, closed to
	// others; LogDir where it keeps the output of containers.
	Dir, LogDir string
	// Volumes pins the paths below volumes; nil for pins in Dir.
	Volumes Volumes
	// Features are what the runtime and the machine can enforce.
	Features container.Features
	// SeccompDir holds the seccomp profiles that manifests name.
	SeccompDir string
	// StatusFile gets the status of all pods whenever one changes.
	StatusFile string
	// Crash has the pauses between attempts of a container. Retry has those after a failed step.
	Crash, Retry lifecycle.Backoff
	Now          func() time.Time
	Log          *slog.Logger
}

// Volumes gives paths below volumes to runtimes: volume.Pins.
type Volumes interface {
	Pin(h volume.Holder, number int, volume, path string) (string, error)
	Release(h volume.Holder) error
	ReleasePod(uid string) error
	Holders() ([]string, error)
}

// Agent runs pods. Want sets the wanted pods. Changed requests a check of one pod.
type Agent struct {
	Config
	place place

	mu      sync.Mutex                  // guards the fields below
	wanted  map[string]podspec.Manifest // nil before the first Want: until then no pod is ended
	workers map[string]*worker
	all     bool            // the list is complete: all other pods are ended
	dropped map[string]bool // by uid: pods of an earlier Want that the last one did not contain
	launch  func(*worker)   // nil before workers may be started
	status  map[string]PodStatus
	// unreadable are files of manifests that could not be read; guarded by mu.
	unreadable []manifest.Problem
	// unread holds, by uid, the pods of earlier runs whose records are temporarily unreadable.
	// recordless holds those whose records are damaged or missing. Both have no worker.
	unread, recordless map[string]bool
	// ending is the recordless pod that is being ended. It starts again only after its end.
	ending string

	group         sync.WaitGroup
	published     chan struct{} // there is a new status to write
	syncRequested chan struct{}
	recordsWoken  chan struct{} // a pod without a record may have to end
}

// New makes an agent, which does nothing before Run.
func New(c Config) *Agent {
	if c.Volumes == nil {
		c.Volumes = volume.NewPins(filepath.Join(c.Dir, "pins"))
	}
	return &Agent{
		Config: c, place: place{pods: filepath.Join(c.Dir, "pods"), logs: c.LogDir},
		workers: map[string]*worker{}, status: map[string]PodStatus{}, dropped: map[string]bool{},
		unread: map[string]bool{}, recordless: map[string]bool{},
		published: make(chan struct{}, 1), syncRequested: make(chan struct{}, 1), recordsWoken: make(chan struct{}, 1),
	}
}

// Want replaces the wanted pods. A pod whose manifest has changed is ended and started again. A
// pod that an earlier Want of this run contained, and this one does not, is ended. Pods of
// earlier runs are ended only if the list is complete (all).
func (a *Agent) Want(manifests []podspec.Manifest, all bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for uid := range a.wanted {
		a.dropped[uid] = true
	}
	a.wanted, a.all = map[string]podspec.Manifest{}, all
	for _, m := range manifests {
		uid := m.Pod.GetMetadata().GetUid()
		a.wanted[uid] = m
		delete(a.dropped, uid)
	}
	a.compare()
}

// Changed means that something has happened to a container of a pod.
func (a *Agent) Changed(uid string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.workers[uid]; w != nil {
		w.wake()
	}
}

// compare ends pods that are not wanted and starts those that are. The caller holds mu.
func (a *Agent) compare() {
	if a.launch == nil || a.wanted == nil {
		return
	}
	for uid, w := range a.workers {
		m, ok := a.wanted[uid]
		if !ok && (a.all || a.dropped[uid]) || ok && !bytes.Equal(m.Document, w.manifest.Document) {
			w.remove()
		}
	}
	for uid, m := range a.wanted {
		if a.workers[uid] == nil && !a.unread[uid] && a.ending != uid {
			// The runtime lists the containers of a pod whose record was lost.
			delete(a.recordless, uid)
			a.begin(m, &record{Document: m.Document})
		}
	}
	if len(a.recordless) > 0 {
		a.wakeRecords()
	}
}

// begin starts a worker; the caller holds mu.
func (a *Agent) begin(m podspec.Manifest, rec *record) {
	w := a.newWorker(m, rec)
	a.workers[w.uid] = w
	a.status[w.uid] = w.status() // it is there from the first moment
	a.reportPublished()
	a.launch(w)
}

// gone removes the worker of an ended pod; a new pod of the same uid may start.
func (a *Agent) gone(w *worker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.workers, w.uid)
	delete(a.status, w.uid)
	delete(a.dropped, w.uid)
	a.reportPublished()
	a.compare()
}

// Run brings the pods of earlier runs back and works until the context ends. The
// containers continue then.
func (a *Agent) Run(ctx context.Context) error {
	for _, dir := range []string{a.Dir, a.place.pods} {
		if err := beneath.Private(dir); err != nil {
			return err
		}
	}
	var records []*worker
	if err := a.insist(ctx, "list the records of pods", func() (err error) { records, err = a.records(); return err }); err != nil {
		return nil
	}
	if err := a.insist(ctx, "sync the running pods with berthd", func() error {
		if err := a.Node.Ready(ctx); err != nil {
			return err
		}
		return a.Node.Sync(ctx, func(ctx context.Context) ([]string, error) { return a.living(ctx, records) })
	}); err != nil {
		return nil
	}
	a.synced(ctx)
	if err := a.insist(ctx, "remove unknown containers", func() error { return a.removeUnknown(ctx, records) }); err != nil {
		return nil
	}
	a.mu.Lock()
	a.launch = func(w *worker) {
		a.group.Go(func() {
			if w.run(ctx) {
				a.gone(w)
			}
		})
	}
	for _, w := range records {
		a.begin(w.manifest, w.rec)
		// The worker first checks whether berthd still has the pod.
		a.workers[w.uid].markUncertain()
	}
	a.compare()
	a.mu.Unlock()
	a.group.Go(func() { a.followNode(ctx) })
	a.group.Go(func() { a.followRecords(ctx) })
	a.group.Go(func() { a.writeStatus(ctx) })
	a.group.Wait()
	return nil
}

// insist tries until it succeeds or the context ends.
func (a *Agent) insist(ctx context.Context, what string, try func() error) error {
	var delay time.Duration
	for {
		err := try()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		a.Log.Warn(what, "error", err)
		delay = a.Retry.After(delay)
		timer := time.NewTimer(delay)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// removeUnknown removes the containers of pods that the agent has never had, or has not any more, and closes these pods. Each repetition
// lists what is left. Sync has removed these pods from berthd, with their containers.
func (a *Agent) removeUnknown(ctx context.Context, records []*worker) error {
	statuses, err := a.Runtime.List(ctx, "")
	if err != nil {
		return err
	}
	unknown := func(uid string) bool {
		return !a.undecided(uid) && !slices.ContainsFunc(records, func(w *worker) bool { return w.uid == uid })
	}
	for _, s := range statuses {
		if !unknown(s.PodUID) {
			continue
		}
		a.Log.Warn("removing a container of no pod", "id", s.ID, "uid", s.PodUID)
		if err := a.Runtime.Remove(ctx, s.ID); err != nil {
			return err
		}
	}
	opened, err := a.Runtime.Opened(ctx)
	if err != nil {
		return err
	}
	for _, uid := range opened {
		if unknown(uid) {
			if err := a.Runtime.Close(ctx, uid); err != nil {
				return err
			}
		}
	}
	pinned, err := a.Volumes.Holders()
	if err != nil {
		return err
	}
	for _, uid := range pinned {
		if unknown(uid) {
			if err := a.Volumes.ReleasePod(uid); err != nil {
				return err
			}
		}
	}
	return nil
}

// followNode sends the list of living pods to berthd after each new connection. It also makes
// every worker check that berthd still has its pod.
func (a *Agent) followNode(ctx context.Context) {
	for {
		lost, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			a.Node.Lost(lost)
		}()
		select {
		case <-lost.Done():
		case <-a.syncRequested:
		}
		stop()
		if ctx.Err() != nil {
			return
		}
		a.Log.Info("berthd is away, or waits for the list of living pods")
		if a.insist(ctx, "sync the running pods with berthd", func() error {
			if err := a.Node.Ready(ctx); err != nil {
				return err
			}
			return a.sync(ctx)
		}) == nil {
			a.synced(ctx)
		}
		a.mu.Lock()
		for _, w := range a.workers {
			w.markUncertain()
		}
		a.mu.Unlock()
	}
}

// synced logs that berthd has the list of living pods. If berthd lost its device resources, it is
// a new berthd. Pods with devices then wait for the plugins to register, and the node's published
// resources are stale meanwhile.
func (a *Agent) synced(ctx context.Context) {
	a.Log.Info("berthd has the list of living pods")
	none, err := a.Node.NoDevices(ctx)
	switch {
	case err != nil:
		a.Log.Warn("read the node's status from berthd failed", "error", err)
	case none:
		a.Log.Info("berthd knew no devices when it started: extended resources that were published of this node are there only once their plugins register")
	}
}

// sync sends the list of living pods to berthd.
func (a *Agent) sync(ctx context.Context) error {
	return a.Node.Sync(ctx, func(ctx context.Context) ([]string, error) {
		a.mu.Lock()
		workers := slices.Collect(maps.Values(a.workers))
		a.mu.Unlock()
		return a.living(ctx, workers)
	})
}

// requestSync lets followNode sync the running pods with berthd.
func (a *Agent) requestSync() {
	select {
	case a.syncRequested <- struct{}{}:
	default:
	}
}
