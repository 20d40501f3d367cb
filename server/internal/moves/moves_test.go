package moves

import (
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/server/internal/reconcile"
)

// A move of a running container's memory is refused where the memory would not move, or berthd could not see
// that it has: the pod would have both sides for ever.
func TestCheckMove(t *testing.T) {
	t.Parallel()
	old := memtree.V2()
	old.MovesMemory = false
	memory := ledgertest.Memory("c", "memory", "0", 1<<20)
	for name, row := range map[string]struct {
		facts   cgroup.Facts
		runs    string // own, runtime or empty
		refusal string // empty for none
	}{
		"v1":                         {memtree.V1(), "own", ""},
		"v2":                         {memtree.V2(), "own", ""},
		"an old kernel":              {old, "own", "from Linux 5.15 on"},
		"an old kernel, not running": {old, "", ""},
		"an agent's container":       {memtree.V2(), "runtime", "its agent has not reported where its memory is"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, row.facts, nil)
			b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.With(ledgertest.Pod("p", "c", "d"), memory)) })
			bound := ledger.Binding{ID: "p", Owner: ledger.Owner{Pod: "p", Container: "c"}, Own: row.runs == "own"}
			if bound.Own {
				var err error
				start := admission.Start{Binding: bound, PID: b.tree.Spawn(memtree.Mortal)}
				if bound.CgroupPath, err = b.Loop.EnsureContainer(t.Context(), b.ledger.View(), start); err != nil {
					t.Fatal(err)
				}
			}
			if row.runs != "" {
				b.update(func(d *ledger.Draft) { d.Bind(bound) })
			}
			err := b.CheckMove(t.Context(), b.ledger.View(), "p", &ledger.Move{})
			switch {
			case row.refusal == "" && err != nil:
				t.Error(err)
			case row.refusal != "" && (errdefs.ClassOf(err) != errdefs.Refused || !strings.Contains(err.Error(), row.refusal)):
				t.Errorf("got %v", err)
			}
		})
	}
}

// Huge pages move if the configuration allows it, and the memory of a runtime's container on v1 does not.
func TestMemoryThatStays(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		facts cgroup.Facts
		huge  string // their container; none without
		own   bool
		moves bool // moves.hugePages
		stays bool
	}{
		"own on v1":             {memtree.V1(), "none", true, false, false},
		"own on v2":             {memtree.V2(), "none", true, false, false},
		"a runtime's on v1":     {memtree.V1(), "none", false, true, true},
		"a runtime's on v2":     {memtree.V2(), "none", false, false, false},
		"huge pages":            {memtree.V2(), "c", true, false, true},
		"huge pages, allowed":   {memtree.V2(), "c", true, true, false},
		"the same on v1":        {memtree.V1(), "c", true, true, false},
		"huge pages of the pod": {memtree.V2(), "", true, false, true},
		"those of another":      {memtree.V2(), "d", true, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, row.facts, func(c *Config) {
				c.HugePages.Move = row.moves
				c.Loop.Runtime = struct{ reconcile.Runtime }{}
			})
			bound := reconcile.Bound{Cgroup: cgroup.Name{"p"}, Binding: ledger.Binding{
				ID: "p", Owner: ledger.Owner{Pod: "p", Container: "c"}, Own: row.own}}
			pod := ledgertest.Pod("p", "c", "d")
			if row.huge != "none" {
				pod = ledgertest.With(pod, ledgertest.Memory(row.huge, "hugepages-2Mi", "0", 2<<20))
			}
			if why := b.staysBecause(pod, bound); (why != "") != row.stays {
				t.Errorf("%q", why)
			}
		})
	}
}
