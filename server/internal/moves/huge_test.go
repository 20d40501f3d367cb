package moves

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/berthd/berth/api/protocol"
	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
)

const (
	page     = int64(2 << 20)
	pages2Mi = "hugepages-2Mi"
)

// nodePages are huge pages of 2 MiB by node.
func nodePages(counts ...uint64) cgroup.HugeBytes {
	out := cgroup.HugeBytes{page: {}}
	for id, n := range counts {
		out[page][id] = n * uint64(page)
	}
	return out
}

// hugeBench has a pod on NUMA node 0 of two, with memory and 8 huge pages, and its process.
type hugeBench struct {
	*bench
	pid  int
	read func(ctx context.Context, pid int) (cgroup.HugeBytes, error)
}

func newHugeBench(t *testing.T, facts cgroup.Facts) *hugeBench {
	t.Helper()
	h := &hugeBench{}
	h.bench = newBench(t, facts, func(c *Config) {
		c.HugePages = HugePages{
			Move:  true,
			Check: func(ctx context.Context, pid int) error { _, err := h.read(ctx, pid); return err },
			Read:  func(ctx context.Context, pid int) (cgroup.HugeBytes, error) { return h.read(ctx, pid) },
			Free:  func() (cgroup.HugeBytes, error) { return h.tree.FreeHugePages() },
		}
	})
	h.read = h.tree.HugePagesOf
	h.pass()
	h.put("0", nil)
	h.pid = h.tree.Spawn(memtree.Mortal)
	start := admission.Start{Binding: ledger.Binding{ID: "p", Owner: ledger.Owner{Pod: "p", Container: "c"}, Own: true}, PID: h.pid}
	var err error
	if start.Binding.CgroupPath, err = h.Loop.EnsureContainer(t.Context(), h.ledger.View(), start); err != nil {
		t.Fatal(err)
	}
	h.update(func(d *ledger.Draft) { d.Bind(start.Binding) })
	h.pass()
	return h
}

// errEnded is the error of a process that ends before it is read.
var errEnded = errdefs.NotFoundf("it has ended")

// fails returns a reader whose reads fail.
func (h *hugeBench) fails(err error) func(context.Context, int) (cgroup.HugeBytes, error) {
	return func(_ context.Context, pid int) (cgroup.HugeBytes, error) {
		if errors.Is(err, errEnded) {
			h.tree.Kill(pid)
		}
		return nil, err
	}
}

func claimsOn(nodes string) []ledger.Claim {
	out := []ledger.Claim{ledgertest.Memory("c", "memory", nodes, 1<<20), ledgertest.Memory("c", pages2Mi, nodes, 8*uint64(page))}
	for i := range out {
		out[i].Owner.Pod = "p"
	}
	return out
}

func (h *hugeBench) put(nodes string, m *ledger.Move) {
	p := ledgertest.With(ledgertest.Pod("p", "c"), claimsOn(nodes)...)
	p.Move = m
	h.update(func(d *ledger.Draft) { d.PutPod(p) })
}

// migrates is the step of a move in which the memory goes to node 1.
func (h *hugeBench) migrates() error {
	m := &ledger.Move{From: claimsOn("0"), To: claimsOn("1")}
	h.put("0-1", m)
	if err := h.Settled(h.t.Context(), h.ledger.View(), "p"); err != nil {
		h.t.Fatal(err)
	}
	then := *m
	then.Migrating = []string{"c"}
	h.put("0-1", &then)
	return h.settles()
}

func (h *hugeBench) settles() error { return h.Settled(h.t.Context(), h.ledger.View(), "p") }

func (h *hugeBench) want(err error, text string) {
	h.t.Helper()
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(), text) {
		h.t.Errorf("got %v, want %q", err, text)
	}
}

// Huge pages arrive, or stay where they are: then the container does not leave the old nodes, and the kernel is given
// another attempt from time to time.
func TestHugePagesMove(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("all arrive", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.tree.MapHugePages(h.pid, nodePages(8), nil)
				h.tree.SetFreeHugePages(nodePages(0, 8))
				if err := h.migrates(); err != nil {
					t.Error(err)
				}
				if use := h.Use(t.Context(), h.ledger.View(), "p"); use.NodeBytes[0] != 0 || use.NodeBytes[1] != 8*uint64(page) {
					t.Errorf("used: %v", use.NodeBytes)
				}
			})
			t.Run("a pinned one stays", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.tree.MapHugePages(h.pid, nodePages(8), map[int64]uint64{page: uint64(page)})
				h.tree.SetFreeHugePages(nodePages(0, 8))
				at := cgroup.Name{"kubepods", "podp", "c"}
				h.want(h.migrates(), "1 of 2MB on NUMA node 0")
				h.tree.MapHugePages(h.pid, nodePages(1, 7), nil)
				h.want(h.settles(), "1 of 2MB on NUMA node 0")
				h.wait(protocol.MoveRetryInterval)
				h.want(h.settles(), "1 of 2MB on NUMA node 0") // this attempt moves it
				if err := h.settles(); err != nil {
					t.Error(err)
				}
				if seen, err := h.tree.Observe(t.Context(), at, 0); err != nil || seen.Find(at).Values.Mems != numa.Of(1) {
					t.Errorf("it may use memory of nodes %s: %v", seen.Find(at).Values.Mems, err)
				}
				if len(h.attempts) != 0 {
					t.Errorf("attempts of %v are still known", h.attempts)
				}
			})
			t.Run("no free ones", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.tree.MapHugePages(h.pid, nodePages(8), nil)
				h.tree.SetFreeHugePages(nodePages(0, 5))
				h.want(h.migrates(), "3 of 2MB on NUMA node 0")
			})
			t.Run("not readable", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.read = h.fails(errdefs.Unavailablef("it hangs"))
				h.want(h.migrates(), "it hangs")
			})
			t.Run("the process has ended", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.read = h.fails(errEnded)
				if err := h.migrates(); err != nil {
					t.Error(err)
				}
			})
			t.Run("the process is hidden", func(t *testing.T) {
				h := newHugeBench(t, facts)
				h.read = h.fails(errdefs.NotFoundf("no such file"))
				h.want(h.migrates(), "/proc does not show")
			})
		})
	}
}

// A move of huge pages is refused where they would not arrive.
func TestRoomForHugePages(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		mapped, free cgroup.HugeBytes
		from, to     string
		unreadable   error
		reason       errdefs.Reason // empty: no refusal
		text         string
	}{
		"enough": {nodePages(8), nodePages(0, 8), "0", "1", nil, "", ""},
		"too few": {nodePages(8), nodePages(0, 7), "0", "1", nil, errdefs.ResizeDeferred,
			"free pages of hugepages-2Mi needed there: 8; the kernel has 7"},
		"not used yet, but promised": {nodePages(), nodePages(0, 7), "0", "1", nil, errdefs.ResizeDeferred, "needed there: 8"},
		"from both nodes":            {nodePages(4, 4), nodePages(0, 4), "0-1", "1", nil, "", ""},
		"some are there already":     {nodePages(2, 6), nodePages(0, 2), "0-1", "1", nil, "", ""},
		"some are there, and too few": {nodePages(6, 2), nodePages(0, 5), "0-1", "1", nil, errdefs.ResizeDeferred,
			"free pages of hugepages-2Mi needed there: 6; the kernel has 5"},
		"booked on the node that stays": {nodePages(0, 8), nodePages(5, 0), "0-1", "0", nil, errdefs.ResizeDeferred,
			"needed there: 8; the kernel has 5"},
		"nobody may read": {nodePages(8), nodePages(0, 8), "0", "1", errdefs.Unsupportedf("permission denied"),
			errdefs.Infeasible, "permission denied"},
		"it hangs": {nodePages(8), nodePages(0, 8), "0", "1", errdefs.Unavailablef("it hangs"),
			errdefs.ResizeDeferred, "it hangs"},
		"it has ended": {nodePages(8), nodePages(0, 8), "0", "1", errEnded, "", ""},
		"it is hidden": {nodePages(8), nodePages(0, 8), "0", "1", errdefs.NotFoundf("no such file"),
			errdefs.ResizeDeferred, "/proc does not show"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHugeBench(t, memtree.V2())
			h.put(row.from, nil)
			h.tree.MapHugePages(h.pid, row.mapped, nil)
			h.tree.SetFreeHugePages(row.free)
			if row.unreadable != nil {
				h.read = h.fails(row.unreadable)
			}
			m := &ledger.Move{From: claimsOn(row.from), To: claimsOn(row.to)}
			err := h.CheckMove(t.Context(), h.ledger.View(), "p", m)
			reason, _ := errdefs.ReasonOf(err)
			if row.reason == "" && err != nil || row.reason != "" && (errdefs.ClassOf(err) != errdefs.Refused || reason != row.reason ||
				!strings.Contains(err.Error(), row.text)) {
				t.Errorf("%s: %v", reason, err)
			}
		})
	}
}

// Pages that several processes share count once, and none disappears.
func TestSharedHugePagesCountOnce(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		used         uint64
		mapped, want cgroup.HugeBytes
	}{
		"each its own":       {8, nodePages(8), nodePages(8)},
		"four share all":     {8, nodePages(24, 8), nodePages(6, 2)},
		"one stays":          {8, nodePages(1, 79), nodePages(1, 8)},
		"not counted":        {0, nodePages(3, 1), nodePages(3, 1)},
		"counted elsewhere":  {1, nodePages(3, 1), nodePages(1, 1)},
		"none":               {8, nodePages(), nodePages()},
		"a huge part of all": {1 << 40, nodePages(1<<41, 1<<41), nodePages(1<<39, 1<<39)},
	} {
		h := newHugeBench(t, memtree.V2())
		h.Loop.Tree = shown{h.Loop.Tree, cgroup.Details{HugePageBytes: map[int64]uint64{page: row.used * uint64(page)}}}
		if got := h.once(t.Context(), nil, row.mapped); !maps.Equal(got[page], row.want[page]) {
			t.Errorf("%s: %v, want %v", name, got, row.want)
		}
	}
}
