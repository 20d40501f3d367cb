package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/logs"
)

// Waits between attempts to remove an orphan; they double.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
)

// Alone runs do with the current view while no operation on a pod is in progress;
// admission.Engine has this method.
type Alone func(ctx context.Context, uid string, do func(ctx context.Context, view *ledger.View) error) error

// Sweeper removes orphans, each with its own worker. So a process that cannot be killed (it
// waits for a dead disk) delays no other orphan, and an orphan never has two workers.
type Sweeper struct {
	// Orphans returns possible orphans, as Loop.Orphans does.
	Orphans func() []cgroup.Name
	Layout  cgroup.Layout
	// Alone excludes pods during their admission, which have a cgroup before they are in
	// the ledger.
	Alone Alone
	// Remove kills the processes in a cgroup and removes it.
	Remove func(ctx context.Context, name cgroup.Name) error
	// Keep returns whether a cgroup of an unknown pod stays. Before the agent has listed
	// the running pods, any process may belong to a running pod. Nil keeps none.
	Keep func(ctx context.Context, name cgroup.Name) (bool, error)
	// Every is the time between two searches for orphans; 0 means 10 s.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger

	workers sync.WaitGroup
	mu      sync.Mutex
	tries   map[string]*try // guarded by mu: by the orphan's name
}

// try is the state of the attempts at an orphan.
type try struct {
	running bool
	// next is the time of the next attempt; wait is the pause before it.
	next time.Time
	wait time.Duration
}

// Run removes orphans until ctx ends, and then waits for the workers.
func (s *Sweeper) Run(ctx context.Context) error {
	every := s.Every
	if every == 0 {
		every = 10 * time.Second
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	defer s.Wait()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			s.Look(ctx)
		}
	}
}

// Look starts a worker for every orphan that has none and whose next attempt is due. It
// does not wait for the workers.
func (s *Sweeper) Look(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tries == nil {
		s.tries = make(map[string]*try)
	}
	found := map[string]bool{}
	for _, name := range s.Orphans() {
		key := name.String()
		found[key] = true
		t := s.tries[key]
		if t == nil {
			t = &try{wait: firstRetry}
			s.tries[key] = t
		}
		if t.running || s.Now().Before(t.next) {
			continue
		}
		t.running = true
		s.workers.Go(func() { s.work(ctx, name, t) })
	}
	for key, t := range s.tries {
		if !found[key] && !t.running {
			delete(s.tries, key)
		}
	}
}

// Wait returns when no worker runs.
func (s *Sweeper) Wait() { s.workers.Wait() }

// work makes one attempt to remove one orphan.
func (s *Sweeper) work(ctx context.Context, name cgroup.Name, t *try) {
	err := s.attempt(ctx, name)
	s.mu.Lock()
	defer s.mu.Unlock()
	t.running = false
	if err == nil {
		t.wait, t.next = firstRetry, time.Time{}
		return
	}
	t.next = s.Now().Add(t.wait)
	s.Log.ErrorContext(ctx, "removing a cgroup without a pod failed", "name", name.String(), "again_in", t.wait, "error", err)
	t.wait = min(2*t.wait, lastRetry)
}

// attempt removes an orphan, unless its pod is known now or is an unknown living pod, or
// the ledger may lack running pods.
func (s *Sweeper) attempt(ctx context.Context, name cgroup.Name) error {
	uid, ok := s.Layout.PodUID(name)
	if !ok {
		return nil
	}
	return s.Alone(ctx, uid, func(ctx context.Context, view *ledger.View) error {
		p, here := view.Pod(uid)
		switch {
		case here && name.Parent().Equal(s.Layout.Tier(p.QoS)), view.Uncertain() != "", view.UnknownLive(uid):
			return nil
		}
		if s.Keep != nil {
			if keep, err := s.Keep(ctx, name); keep || err != nil {
				return err
			}
		}
		return s.Remove(ctx, name)
	})
}

// Orphans returns the cgroups of pods that were not in the ledger in the last pass. Some
// may belong to pods that are being admitted.
func (l *Loop) Orphans() []cgroup.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orphans
}

// RemoveOrphan kills the processes in a cgroup and removes it. An orphan without processes
// is not logged: systemd creates some again when it restarts.
func (l *Loop) RemoveOrphan(ctx context.Context, name cgroup.Name) error {
	level := slog.LevelWarn
	if pids, err := l.Tree.Procs(ctx, name); err == nil && len(pids) == 0 {
		level = slog.LevelDebug
	}
	l.Log.Log(ctx, level, "removing a cgroup without a pod", logs.Repaired(logs.Cgroup, "name", name.String())...)
	return l.RemoveCgroup(ctx, name)
}

// RemoveEmpty removes the remains of a pod that is not in the ledger and has no processes.
func (l *Loop) RemoveEmpty(ctx context.Context, view *ledger.View, uid string) error {
	if _, known := view.Pod(uid); known || view.UnknownLive(uid) {
		return nil
	}
	for _, class := range workload.QoSClasses {
		name, err := l.Layout.Pod(class, uid)
		if err != nil {
			return err
		}
		pids, err := l.Tree.Procs(ctx, name)
		if err != nil {
			return err
		}
		if len(pids) > 0 {
			return errdefs.Preconditionf("remove what is left of pod %s: process %d runs in cgroup %s", uid, pids[0], name)
		}
	}
	return l.RemoveUnknown(ctx, view, uid)
}
