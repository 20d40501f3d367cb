package transition_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/placement/placementtest"
	"github.com/berthd/berth/managers/transition"
)

const nodeBytes = 1000

// allocate draws the claims of pods on a machine, with nothing shared that is exclusive.
func allocate(t *rapid.T, m *machine.Topology, name string, pods int) map[string][]ledger.Claim {
	free := rapid.Permutation(m.CPUs().Minus(cpuset.Of(0)).IDs()).Draw(t, name+" cpus")
	room := make([]uint64, m.NodeMask().Len())
	for i := range room {
		room[i] = nodeBytes
	}
	out := map[string][]ledger.Claim{}
	for i := range pods {
		uid := fmt.Sprintf("p%d", i)
		var claims []ledger.Claim
		for c := range 1 + i%2 {
			container := fmt.Sprintf("c%d", c)
			if n := rapid.IntRange(1, 4).Draw(t, name+" n"); n < len(free) {
				claims = append(claims, ledgertest.Exclusive(container, cpuset.Of(free[:n]...).String()))
				free = free[n:]
			}
			node := rapid.IntRange(0, len(room)-1).Draw(t, name+" node")
			if b := uint64(rapid.IntRange(1, 500).Draw(t, name+" bytes")); b <= room[node] {
				room[node] -= b
				claims = append(claims, ledgertest.Memory(container, "memory", numa.Of(node).String(), b))
			}
		}
		out[uid] = ledgertest.With(ledgertest.Pod(uid, "c0", "c1"), claims...).Claims
	}
	return out
}

// TestPlansKeepTheInvariants draws two states of a machine, and the plan between them.
func TestPlansKeepTheInvariants(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SampledFrom([]string{"1s1n8c1t", "1s2n4c2t", "2s4n4c2t", "1s4n3c1t"}).Draw(t, "machine")
		m := machinetest.Build(shape)
		rules := ledger.Rules{Machine: m, ReservedCPUs: cpuset.Of(0)}
		for id := range m.NodeMask().All() {
			rules.Memory = append(rules.Memory, ledger.NodeMemory{Node: id, Resource: "memory", Total: nodeBytes, Allocatable: nodeBytes})
		}
		pods := rapid.IntRange(1, 6).Draw(t, "pods")
		from, wanted := allocate(t, m, "from", pods), allocate(t, m, "to", pods)
		d := ledger.NewDraft(ledgertest.New(t, rules).View())
		var changes, back []transition.Change
		for i := range pods {
			uid := fmt.Sprintf("p%d", i)
			d.PutPod(ledgertest.With(ledgertest.Pod(uid, "c0", "c1"), from[uid]...))
			c := transition.Change{Pod: uid}
			for _, w := range wanted[uid] {
				same := func(h ledger.Claim) bool { return h.Owner == w.Owner && h.Resource == w.Resource }
				if at := slices.IndexFunc(from[uid], same); at >= 0 {
					c.From, c.To = append(c.From, from[uid][at]), append(c.To, w)
				}
			}
			changes, back = append(changes, c), append(back, transition.Change{Pod: c.Pod, From: c.To, To: c.From})
		}
		// A pod that gets no claim on something keeps its resources, which other units may need: the
		// wanted state is not one then.
		final := ledger.NewDraft(d.View())
		for _, c := range changes {
			final.AddClaims(c.Pod, c.To...)
		}
		if len(check.View(final.View())) > 0 || overfull(final.View()) {
			t.Skip("the wanted state is impossible")
		}
		start := d.View()
		plan, err := transition.New(start, changes)
		if err != nil {
			if reason, _ := errdefs.ReasonOf(err); reason != errdefs.ResizeDeferred {
				t.Fatal(err)
			}
			return // no free CPU, or no memory for both sides
		}
		var k placementtest.Kernel
		k.Follow(t, start)
		view := start
		for i, s := range plan.Steps {
			next := ledger.NewDraft(view)
			s.Apply(next)
			after := next.View()
			invariants(t, start, after, final.View(), s)
			view = after
			k.Follow(t, view)
			// After a crash, the rest is the same.
			rest, err := transition.New(view, changes)
			if err != nil {
				t.Fatalf("after step %d (%s): %v", i, s.String(), err)
			}
			reach(t, view, rest, final.View())
			// Back from here.
			undo, err := transition.New(view, back)
			if err != nil {
				t.Fatalf("undo after step %d (%s): %v", i, s.String(), err)
			}
			reach(t, view, undo, start)
		}
		reach(t, view, &transition.Plan{}, final.View())
		// A plan for each step, and the changes are reversed at some of them.
		k = placementtest.Kernel{}
		k.Follow(t, start)
		view, there := start, true
		for turns := rapid.IntRange(0, 3).Draw(t, "turns"); turns >= 0; there = !there {
			way, goal := changes, final.View()
			if !there {
				way, goal = back, start
			}
			left := rapid.IntRange(0, 2*len(plan.Steps)).Draw(t, "steps")
			for turns--; turns < 0 || left > 0; left-- {
				plan, err := transition.New(view, way)
				if err != nil {
					t.Fatalf("after a turn: %v", err)
				}
				if len(plan.Steps) == 0 {
					break
				}
				at := slices.IndexFunc(plan.Steps, func(s transition.Step) bool { return s.Kind != transition.Migrate })
				next := ledger.NewDraft(view)
				plan.Steps[at].Apply(next)
				invariants(t, start, next.View(), final.View(), plan.Steps[at])
				view = next.View()
				k.Follow(t, view)
			}
			if turns < 0 {
				reach(t, view, &transition.Plan{}, goal)
			}
		}
	})
}

// overfull returns whether a node has more memory claimed than it has.
func overfull(v *ledger.View) bool {
	held := v.MemoryUse().Held("memory")
	for _, m := range v.Rules().Memory {
		if held[m.Node] > m.Allocatable {
			return true
		}
	}
	return false
}

func invariants(t *rapid.T, start, after, final *ledger.View, s transition.Step) {
	if f := check.View(after); len(f) > 0 {
		t.Fatalf("%s: %v", s.String(), f)
	}
	if overfull(after) {
		t.Fatalf("%s: a node is overfull", s.String())
	}
	for i := range s.After {
		c := &s.After[i]
		was, _ := start.Claim(c.Owner, c.Resource)
		will, _ := final.Claim(c.Owner, c.Resource)
		if c.CPUs != nil && c.CPUs.Set.Len() < min(was.CPUs.Set.Len(), will.CPUs.Set.Len()) {
			t.Fatalf("%s: below the request", s.String())
		}
		if total(c.Memory) < min(total(was.Memory), total(will.Memory)) {
			t.Fatalf("%s: less memory than requested", s.String())
		}
	}
}

func total(blocks []ledger.Block) (sum uint64) {
	for _, b := range blocks {
		sum += b.Bytes
	}
	return sum
}

func reach(t *rapid.T, view *ledger.View, plan *transition.Plan, want *ledger.View) {
	for _, s := range plan.Steps {
		d := ledger.NewDraft(view)
		s.Apply(d)
		view = d.View()
	}
	for p := range want.Pods() {
		got, _ := view.Pod(p.UID())
		for i := range p.Claims {
			if got.Claims[i].Content() != p.Claims[i].Content() {
				t.Fatalf("%s has %s, want %s", p.Claims[i].Owner, got.Claims[i].Content(), p.Claims[i].Content())
			}
		}
	}
}
