package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/reconcile"
)

// reloaded is a tree whose systemd reads its units again when a test triggers it.
type reloaded struct {
	*memtree.Tree
	begin, over chan struct{}
}

func (r *reloaded) Reloads(ctx context.Context, done func()) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.begin:
			done()
			r.over <- struct{}{}
		}
	}
}

// TestSlicesThatSystemdBringsBack: when systemd has read its units again, or was started again
// in its place, slices of removed pods that it has made again are removed at once and in
// silence. The pod that is here stays, and so does an unknown one with processes as long as
// the agent has not called SyncPods.
func TestSlicesThatSystemdBringsBack(t *testing.T) {
	t.Parallel()
	tree := &reloaded{Tree: memtree.New(memtree.V2(), cpuset.Range(0, 3), numa.Of(0)), begin: make(chan struct{}),
		over: make(chan struct{})}
	layout, err := cgroup.NewLayout("/", memtree.V2().Driver)
	if err != nil {
		t.Fatal(err)
	}
	l := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})
	if _, err := l.Update(t.Context(), func(d *ledger.Draft) error {
		p := ledgertest.Pod("here", "c")
		p.QoS, p.Pod.QoS = workload.Burstable, workload.Burstable
		d.PutPod(p)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelWarn}))
	loop := reconcile.New(reconcile.Config{
		Tree: tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(memtree.V2())}},
		View: l.View, Log: log, Now: time.Now,
	})
	sweeper := &reconcile.Sweeper{
		Orphans: loop.Orphans, Remove: loop.RemoveOrphan, Layout: layout, Now: time.Now, Log: log,
		Alone: func(ctx context.Context, _ string, do func(context.Context, *ledger.View) error) error {
			return do(ctx, l.View())
		},
		Keep: func(ctx context.Context, name cgroup.Name) (bool, error) {
			pids, err := tree.Procs(ctx, name)
			return len(pids) > 0, err
		},
	}
	ctx, end := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- followReloads(ctx, tree, loop, sweeper, log) }()

	burstable := func(name string) cgroup.Name { return append(slices.Clone(layout.Tier(workload.Burstable)), name) }
	here, gone, lives := burstable("podhere"), burstable("podgone"), burstable("podlives")
	state := func(n cgroup.Name) cgroup.State {
		t.Helper()
		seen, err := tree.Observe(t.Context(), n, 0)
		if err != nil {
			t.Fatal(err)
		}
		return seen.Find(n).State
	}
	for range 2 {
		for _, n := range []cgroup.Name{gone, lives} {
			if _, err := tree.Ensure(t.Context(), cgroup.Node{Name: n}); err != nil {
				t.Fatal(err)
			}
		}
		if err := tree.Move(t.Context(), lives, tree.Spawn(memtree.Mortal)); err != nil {
			t.Fatal(err)
		}
		tree.begin <- struct{}{}
		<-tree.over
		sweeper.Wait()
		if state(here) != cgroup.Valid || state(gone) != cgroup.Absent || state(lives) != cgroup.Valid {
			t.Errorf("the pod that is here is %s, the removed one %s, the unknown one %s", state(here), state(gone), state(lives))
		}
	}
	if said.Len() > 0 {
		t.Errorf("it is not silent:\n%s", &said)
	}
	end()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}
