package reconcile

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// Pods come, run, are resized and go while the loop runs and others look: in the end
// there is nothing left to do, and nothing is left.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	t.Run("of a runtime", func(t *testing.T) {
		t.Parallel()
		b, d := newFakeRuntime(t, memtree.V1())
		manyAtOnce(t, b, d)
	})
	t.Run("of berth", func(t *testing.T) {
		t.Parallel()
		b := newBench(t, memtree.V2(), nil)
		b.pass()
		manyAtOnce(t, b, nil)
	})
}

func manyAtOnce(t *testing.T, b *bench, d *fakeRuntime) {
	t.Helper()
	b.Every, b.Now = time.Millisecond, time.Now
	b.Config.Observe = nil
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()

	var wait sync.WaitGroup
	for n, uid := range []string{"own", "p1", "p2", "p3"} {
		wait.Go(func() {
			for round := range 10 {
				if err := b.live(t.Context(), d, uid, fmt.Sprint(uid, "-", round), n); err != nil {
					t.Errorf("pod %s, round %d: %v", uid, round, err)
				}
			}
		})
	}
	wait.Go(func() {
		for range 50 {
			if _, err := b.Report(t.Context()); err != nil {
				t.Error(err)
			}
			b.SetLimits(Limits{QoS: b.limits().QoS})
			b.Drifts()
			b.Orphans()
		}
	})
	wait.Wait()
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	b.pass()
	if ops, err := b.Plan(t.Context()); err != nil || len(ops) > 0 || len(b.Orphans()) > 0 || len(b.wanted.leaving) > 0 {
		t.Errorf("left to do %v, orphans %v, leaving %v, %v", ops, b.Orphans(), b.wanted.leaving, err)
	}
}

func (b *bench) limits() Limits {
	b.Loop.mu.Lock()
	defer b.Loop.mu.Unlock()
	return b.Limits
}

// live is the life of a pod, as the engine leads it, with a container of a runtime or,
// without a fake runtime, of berth.
func (b *bench) live(ctx context.Context, d *fakeRuntime, uid, id string, n int) error {
	p := ledgertest.Pod(uid, "c")
	if uid == "own" {
		p = ledgertest.With(p, ledgertest.Exclusive("c", "2-3"))
	} else {
		p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = cpus(int64(100*n)), cpus(int64(100*n))
	}
	change := func(do func(*ledger.Draft)) error {
		_, err := b.ledger.Update(ctx, func(d *ledger.Draft) error { do(d); return nil })
		b.Wake()
		return err
	}
	draft := ledger.NewDraft(b.ledger.View())
	draft.PutPod(p)
	if _, _, err := b.EnsurePod(ctx, draft.View(), uid); err != nil {
		return err
	}
	if err := change(func(d *ledger.Draft) { d.PutPod(p) }); err != nil {
		return err
	}
	bound := ledger.Binding{ID: id, Owner: ledger.Owner{Pod: uid, Container: "c"}, Sequence: 1}
	pid := 0
	if d == nil {
		pid = b.tree.Spawn(memtree.Mortal)
	} else {
		d.create(id, uid, "0-3")
	}
	for range 2 { // once more with the view of the commit
		path, err := b.EnsureContainer(ctx, b.ledger.View(), admission.Start{Binding: bound, PID: pid})
		if err != nil {
			return err
		}
		bound.CgroupPath, bound.Own = path, path != ""
		if err := change(func(d *ledger.Draft) { d.Bind(bound) }); err != nil {
			return err
		}
	}
	if d != nil {
		if err := d.launch(ctx, id); err != nil {
			return err
		}
	}
	if uid != "own" {
		more := *p
		more.Pod.Containers = []workload.Container{p.Pod.Containers[0]}
		more.Pod.Containers[0].Requests, more.Pod.Containers[0].Limits = cpus(500), cpus(500)
		draft := ledger.NewDraft(b.ledger.View())
		draft.PutPod(&more)
		if err := b.CheckResize(ctx, draft.View(), uid); err != nil {
			return err
		}
		if err := b.Resize(ctx, draft.View(), uid); err != nil {
			return err
		}
		if err := change(func(d *ledger.Draft) { d.PutPod(&more) }); err != nil {
			return err
		}
	}
	if d != nil {
		d.set(func() { d.boxes[id].Phase = runtime.Exited })
	} else if err := errors.Join(b.RemoveContainer(ctx, bound), change(func(d *ledger.Draft) { d.Unbind(id) }),
		b.RemoveContainer(ctx, bound)); err != nil {
		return err
	}
	if err := b.RemovePod(ctx, b.ledger.View(), uid); err != nil {
		return err
	}
	return change(func(d *ledger.Draft) { d.RemovePod(uid) })
}
