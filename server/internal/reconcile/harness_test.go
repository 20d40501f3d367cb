package reconcile

import (
	"context"
	"errors"
	"io"
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
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/qos"
	"github.com/berthd/berth/managers/workload"
)

// bench is a loop over a tree in memory, on a machine of four CPUs.
type bench struct {
	*Loop
	t      *testing.T
	tree   *memtree.Tree
	ledger *ledger.Ledger
	last   Outcome

	mu  sync.Mutex
	now time.Time         // guarded by mu
	ops map[Operation]int // guarded by mu

	// refuse makes writes to a cgroup fail, by name, blind looking at it and, by name and
	// /cgroup.procs, at its processes.
	refuse, blind map[string]error
	// counted is called after the processes of a cgroup were listed; nil for nothing.
	counted func(path string)
	// observed is called after a whole tree was looked at; nil for nothing.
	observed func()
	// removing is called in place of every removal; nil for none.
	removing func() error
}

// Ensure refuses the cgroups that the test has set.
func (b *bench) Ensure(ctx context.Context, n cgroup.Node) (created bool, err error) {
	if err := b.refuse[n.Name.String()]; err != nil {
		return false, err
	}
	return b.tree.Ensure(ctx, n)
}

func (b *bench) Observe(ctx context.Context, n cgroup.Name, depth int) (*cgroup.Snapshot, error) {
	if err := b.blind[n.String()]; err != nil {
		return nil, err
	}
	seen, err := b.tree.Observe(ctx, n, depth)
	if b.observed != nil && depth < 0 {
		b.observed()
	}
	return seen, err
}

func (b *bench) Frozen(ctx context.Context, n cgroup.Name) (by cgroup.Name, err error) {
	return b.tree.Frozen(ctx, n)
}

func (b *bench) Move(ctx context.Context, n cgroup.Name, pids ...int) error {
	return b.tree.Move(ctx, n, pids...)
}

func (b *bench) Procs(ctx context.Context, n cgroup.Name) ([]int, error) {
	if err := b.blind[n.String()+"/cgroup.procs"]; err != nil {
		return nil, err
	}
	pids, err := b.tree.Procs(ctx, n)
	if b.counted != nil {
		b.counted(n.String())
	}
	return pids, err
}

func (b *bench) Remove(ctx context.Context, n cgroup.Name) error {
	if b.removing != nil {
		return b.removing()
	}
	if err := b.refuse[n.String()]; err != nil {
		return err
	}
	return b.tree.Remove(ctx, n)
}

// newBench makes a bench; change may alter the configuration.
func newBench(t *testing.T, facts cgroup.Facts, change func(*Config)) *bench {
	t.Helper()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		t: t, tree: memtree.New(facts, cpuset.Range(0, 3), numa.Of(0)), now: time.Unix(1000, 0),
		ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}),
		ops:    map[Operation]int{}, refuse: map[string]error{}, blind: map[string]error{},
	}
	cfg := Config{
		Tree: b, Layout: layout, Limits: Limits{QoS: qos.Config{Cgroup: cgroup.DefaultConfig(facts)}},
		View: b.ledger.View, Log: slog.New(slog.DiscardHandler), Now: b.clock,
		Observe: func(o Outcome) { b.last = o },
		Timed: func(op Operation, _ time.Duration) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.ops[op]++
		},
	}
	if change != nil {
		change(&cfg)
	}
	b.Loop = New(cfg)
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

// pass must succeed.
func (b *bench) pass() {
	b.t.Helper()
	if err := b.Pass(b.t.Context()); err != nil {
		b.t.Fatal(err)
	}
}

// beginStart and endStart do what EnsureContainer does before and after a start.
func (b *bench) beginStart(key placement.Key) {
	b.t.Helper()
	if err := b.Turn(b.t.Context(), func(Turn) error { b.tracker.beginStart(key); return nil }); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bench) endStart(key placement.Key, id string) {
	b.Loop.mu.Lock()
	defer b.Loop.mu.Unlock()
	b.tracker.endStart(b.View(), key, id)
}

// set changes a cgroup as another program would.
func (b *bench) set(path string, v cgroup.Values) {
	b.t.Helper()
	if _, err := b.tree.Ensure(b.t.Context(), cgroup.Node{Name: cgroup.ParseCgroupfs(path), Values: v}); err != nil {
		b.t.Fatal(err)
	}
}

// seen looks at one cgroup.
func (b *bench) seen(path string) cgroup.Observed {
	b.t.Helper()
	name := cgroup.ParseCgroupfs(path)
	s, err := b.tree.Observe(b.t.Context(), name, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	return s.Find(name)
}

// shares reads cpu.shares, 0 if there are none.
func (b *bench) shares(path string) uint64 {
	b.t.Helper()
	if p := b.seen(path).Values.CPUShares; p != nil {
		return *p
	}
	return 0
}

func ptr[T any](v T) *T { return &v }

var errRefused = errors.New("the kernel refuses")

// cpus is a request of CPUs and a little memory.
func cpus(milli int64) workload.Quantities {
	return workload.Quantities{workload.CPU: milli, workload.Memory: 1 << 20}
}

// counting is a log that counts its warnings.
func counting(warnings *int) *slog.Logger {
	return slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.LevelKey && a.Value.Any() == slog.LevelWarn {
			*warnings++
		}
		return a
	}}))
}

// exclusivePod is a pod with CPUs of its own.
func exclusivePod(uid, list string) *ledger.Pod {
	return ledgertest.With(ledgertest.Pod(uid, "c"), ledgertest.Exclusive("c", list))
}
