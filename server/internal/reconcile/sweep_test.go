package reconcile

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// sweeper makes a sweeper for a bench, with a log of what was removed.
func sweeper(b *bench) (*Sweeper, func() []string) {
	var mu sync.Mutex
	var removed []string
	s := &Sweeper{
		Orphans: b.Orphans, Layout: b.Layout, Now: b.Now, Log: b.Log,
		Alone: func(ctx context.Context, _ string, do func(context.Context, *ledger.View) error) error {
			return do(ctx, b.ledger.View())
		},
		Remove: func(ctx context.Context, name cgroup.Name) error {
			mu.Lock()
			removed = append(removed, name.String())
			mu.Unlock()
			return b.RemoveOrphan(ctx, name)
		},
	}
	return s, func() []string {
		s.Wait()
		mu.Lock()
		defer mu.Unlock()
		out := slices.Sorted(slices.Values(removed))
		removed = nil
		return out
	}
}

func expectRemoved(t *testing.T, when string, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: tried to remove %q, want %q", when, got, want)
	}
}

// TestRemovalIsLogged: the removal of an orphan in which processes run is a warning that says nothing of a failure.
func TestRemovalIsLogged(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	var log bytes.Buffer
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.set("/kubepods/podlost", cgroup.Values{})
	if err := b.tree.Move(t.Context(), name("/kubepods/podlost"), b.tree.Spawn(memtree.Mortal)); err != nil {
		t.Fatal(err)
	}
	if err := b.RemoveOrphan(t.Context(), name("/kubepods/podlost")); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); !strings.Contains(text, "WARN") || strings.Contains(text, "failed") {
		t.Errorf("the log has %q", text)
	}
}

func TestSweep(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.admit("a", workload.Burstable, cpus(500))
	b.pass()
	b.set("/kubepods/podlost", cgroup.Values{})
	b.set("/kubepods/poda", cgroup.Values{}) // the pod's class is another one
	b.set("/kubepods/burstable/podstuck", cgroup.Values{})
	b.set("/kubepods/other", cgroup.Values{})
	stuck := b.tree.Spawn(memtree.Stuck)
	if err := b.tree.Move(t.Context(), cgroup.ParseCgroupfs("/kubepods/burstable/podstuck"), stuck); err != nil {
		t.Fatal(err)
	}
	b.pass()
	if b.last.Orphans != 3 {
		t.Errorf("%d orphans, want 3", b.last.Orphans)
	}
	s, removed := sweeper(b)
	s.Look(t.Context())
	expectRemoved(t, "first", removed(), "/kubepods/burstable/podstuck", "/kubepods/poda", "/kubepods/podlost")
	if b.seen("/kubepods/other").State != cgroup.Valid || b.seen("/kubepods/burstable/poda").State != cgroup.Valid {
		t.Error("more than the orphans went")
	}

	// What did not go is tried again after 2 s, then 4 s, and so on.
	for _, wait := range []time.Duration{2 * time.Second, 4 * time.Second, 8 * time.Second} {
		b.pass()
		b.wait(wait - 1)
		s.Look(t.Context())
		expectRemoved(t, "too early", removed())
		b.wait(1)
		s.Look(t.Context())
		expectRemoved(t, "again", removed(), "/kubepods/burstable/podstuck")
	}
	b.tree.Turn(stuck, memtree.Mortal)
	b.wait(time.Hour)
	s.Look(t.Context())
	expectRemoved(t, "at last", removed(), "/kubepods/burstable/podstuck")
	b.pass()
	s.Look(t.Context())
	expectRemoved(t, "nothing left", removed())
	if b.last.Orphans != 0 || len(s.tries) != 0 {
		t.Errorf("%d orphans, %v remembered", b.last.Orphans, s.tries)
	}
}

func TestSweepLeavesNewPodsAlone(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.set("/kubepods/burstable/pode", cgroup.Values{})
	b.pass()
	s, removed := sweeper(b)
	b.admit("e", workload.Burstable, cpus(500)) // committed after the pass that saw an orphan
	s.Look(t.Context())
	expectRemoved(t, "known by now", removed())
	b.set("/kubepods/podf", cgroup.Values{})
	b.update(func(d *ledger.Draft) { d.SetUncertain("lost") })
	b.pass()
	b.wait(time.Hour)
	s.Look(t.Context())
	expectRemoved(t, "uncertain", removed())
	b.update(func(d *ledger.Draft) { d.SetUncertain(""); d.PutUnknownLive(ledger.UnknownLivePod{UID: "f"}) })
	s.Look(t.Context())
	expectRemoved(t, "the agent says that it lives", removed())
	b.update(func(d *ledger.Draft) { d.ForgetUnknownLive("f") })
	s.Look(t.Context())
	expectRemoved(t, "certain", removed(), "/kubepods/podf")
}

// An orphan that takes long has one worker, however often it is looked for.
func TestOneWorkerForAnOrphan(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	b.set("/kubepods/podslow", cgroup.Values{})
	b.set("/kubepods/podquick", cgroup.Values{})
	b.pass()
	s, removed := sweeper(b)
	begun, release := make(chan string, 2), make(chan struct{})
	remove := s.Remove
	s.Remove = func(ctx context.Context, name cgroup.Name) error {
		begun <- name.Base()
		if name.Base() == "podslow" {
			<-release
		}
		return remove(ctx, name)
	}
	s.Look(t.Context())
	<-begun
	<-begun
	for range 3 {
		b.wait(time.Hour)
		s.Look(t.Context())
	}
	close(release)
	got := removed()
	if slow := slices.DeleteFunc(got, func(n string) bool { return n != "/kubepods/podslow" }); len(slow) != 1 {
		t.Errorf("the slow one was removed %d times", len(slow))
	}
}

func TestSweeperStops(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V1(), nil)
	s, _ := sweeper(b)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Run(ctx); err == nil {
		t.Error("it ended without its context")
	}
}

// A kill is logged; an empty cgroup is removed without a line.
func TestSweepOfEmptyCgroups(t *testing.T) {
	t.Parallel()
	warned := 0
	b := newBench(t, memtree.V1(), func(c *Config) { c.Log = counting(&warned) })
	for _, path := range []string{"/kubepods/podempty", "/kubepods/podalive"} {
		b.set(path, cgroup.Values{})
	}
	if err := b.tree.Move(t.Context(), name("/kubepods/podalive"), b.tree.Spawn(memtree.Mortal)); err != nil {
		t.Fatal(err)
	}
	b.pass()
	s, removed := sweeper(b)
	s.Look(t.Context())
	expectRemoved(t, "the look", removed(), "/kubepods/podalive", "/kubepods/podempty")
	if warned != 1 {
		t.Errorf("%d warnings about a living and an empty one", warned)
	}
}
