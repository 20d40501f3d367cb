package reconcile

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
)

// Waits between attempts at an orphan that does not go; they double.
const (
	firstRetry = 2 * time.Second
	lastRetry  = 5 * time.Minute
)

// Sweeper removes orphans: each by a worker of its own, so that one that does not
// die (a process that waits for a dead disk) keeps none of the others, and never
// two workers for one.
type Sweeper struct {
	// Orphans lists what may be orphans, as Loop.Orphans does.
	Orphans func() []cgroup.Name
	Layout  cgroup.Layout
	// Alone keeps pods out that are on their way into the ledger: they have a
	// cgroup before they are known.
	Alone Alone
	// Remove kills what runs in a cgroup and removes it.
	Remove func(ctx context.Context, name cgroup.Name) error
	// Keep tells whether a cgroup stays although nobody knows its pod: before the agent
	// has said which pods live, whatever runs may be a living pod's. Nil keeps none.
	Keep func(ctx context.Context, name cgroup.Name) (bool, error)
	// Every is how often orphans are looked for; 0 means 10 s.
	Every time.Duration
	Now   func() time.Time
	Log   *slog.Logger

	workers sync.WaitGroup
	mu      sync.Mutex
	tries   map[string]*try // guarded by mu: by the orphan's name
}

// try is what became of an orphan so far.
type try struct {
	running bool
	// next is when it is tried again, after wait.
	next time.Time
	wait time.Duration
}

// Run looks for orphans until ctx ends, and then waits for the workers.
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

// Look starts a worker for every orphan that has none and whose time has come. It
// does not wait for them; Wait does.
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

// work makes one attempt at one orphan.
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
	s.Log.ErrorContext(ctx, "remove a cgroup without a pod", "name", name.String(), "again_in", t.wait, "error", err)
	t.wait = min(2*t.wait, lastRetry)
}

// attempt removes an orphan unless its pod has become known or is an unknown living one, or unless
// the ledger may not know every pod.
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

// Orphans lists the cgroups of pods that the ledger did not know when the last
// pass looked. Some may belong to pods that are just being admitted.
func (l *Loop) Orphans() []cgroup.Name {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.orphans
}

// RemoveOrphan kills what runs in a cgroup and removes it. Nobody needs to know of one
// in which nothing runs: systemd brings some back when it starts anew.
func (l *Loop) RemoveOrphan(ctx context.Context, name cgroup.Name) error {
	level := slog.LevelWarn
	if pids, err := l.Tree.Procs(ctx, name); err == nil && len(pids) == 0 {
		level = slog.LevelDebug
	}
	l.Log.Log(ctx, level, "remove a cgroup without a pod", "name", name.String())
	return l.remove(ctx, name)
}
