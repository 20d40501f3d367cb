package cgroupapi

import (
	"context"
	"log/slog"
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

// bench has the calls for a loop over a tree in memory, on a machine of four CPUs.
type bench struct {
	*Cgroups
	t      *testing.T
	tree   *memtree.Tree
	ledger *ledger.Ledger
	last   reconcile.Outcome
}

// newBench makes a bench; change may alter the configuration.
func newBench(t *testing.T, facts cgroup.Facts, change func(*reconcile.Config)) *bench {
	t.Helper()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, tree: memtree.New(facts, cpuset.Range(0, 3), numa.Of(0)),
		ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})}
	cfg := reconcile.Config{
		Tree: b.tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}},
		View: b.ledger.View, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return time.Unix(1000, 0) },
		Observe: func(o reconcile.Outcome) { b.last = o },
	}
	if change != nil {
		change(&cfg)
	}
	b.Cgroups = &Cgroups{Loop: reconcile.New(cfg),
		Alone: func(ctx context.Context, _ string, do func(context.Context, *ledger.View) error) error {
			return do(ctx, b.ledger.View())
		}}
	return b
}

// admit puts a pod of one container into the ledger, without a cgroup.
func (b *bench) admit(uid string, class workload.QoSClass, amounts workload.Quantities) {
	b.t.Helper()
	p := ledgertest.Pod(uid, "c")
	p.QoS, p.Pod.QoS = class, class
	p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = amounts, amounts
	b.update(func(d *ledger.Draft) { d.PutPod(p) })
}

func (b *bench) update(change func(*ledger.Draft)) {
	b.t.Helper()
	if _, err := b.ledger.Update(b.t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) pass() {
	b.t.Helper()
	if err := b.Pass(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) set(path string, v cgroup.Values) {
	b.t.Helper()
	if _, err := b.tree.Ensure(b.t.Context(), cgroup.Node{Name: name(path), Values: v}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) seen(path string) cgroup.Observed {
	b.t.Helper()
	seen, err := b.tree.Observe(b.t.Context(), name(path), 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return seen.Find(name(path))
}

func (b *bench) shares(path string) uint64 {
	b.t.Helper()
	v := b.seen(path).Values
	if v.CPUShares == nil {
		b.t.Fatalf("cgroup %s has no shares", path)
	}
	return *v.CPUShares
}

func ptr[T any](v T) *T { return &v }

func name(path string) cgroup.Name { return cgroup.ParseCgroupfs(path) }

func cpus(milli int64) workload.Quantities {
	return workload.Quantities{workload.CPU: milli, workload.Memory: 1 << 20}
}
