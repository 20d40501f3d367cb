package moves

import (
	"log/slog"
	"sync"
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
	"github.com/berthd/berth/server/internal/reconcile"
)

// bench has the moves of a loop over a tree in memory.
type bench struct {
	*Moves
	t      *testing.T
	tree   *memtree.Tree
	ledger *ledger.Ledger

	mu  sync.Mutex
	now time.Time // guarded by mu
}

// newBench makes a bench on a machine of four CPUs and two NUMA nodes; change may alter the configuration.
func newBench(t *testing.T, facts cgroup.Facts, change func(*Config)) *bench {
	t.Helper()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, now: time.Unix(1000, 0), tree: memtree.New(facts, cpuset.Range(0, 3), numa.Of(0, 1)),
		ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n2c", machinetest.Memory(0, 4<<30),
			machinetest.Memory(1, 4<<30), machinetest.HugePages(0, 2048, 32), machinetest.HugePages(1, 2048, 32))})}
	cfg := Config{Loop: reconcile.New(reconcile.Config{
		Tree: b.tree, Layout: layout, Limits: reconcile.Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}},
		View: b.ledger.View, Log: slog.New(slog.DiscardHandler), Now: b.clock,
	})}
	if change != nil {
		change(&cfg)
	}
	b.Moves = New(cfg)
	b.ledger.Follow(b.Committed)
	return b
}

// clock returns the bench's time, which only wait moves.
func (b *bench) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *bench) wait(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *bench) update(change func(*ledger.Draft)) {
	b.t.Helper()
	if _, err := b.ledger.Update(b.t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) pass() {
	b.t.Helper()
	if err := b.Loop.Pass(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}
