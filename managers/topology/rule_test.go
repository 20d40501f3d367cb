package topology

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

func byRule(r *hint.Rule) hint.Reply {
	return hint.Reply{Provider: "p", Answers: []hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.ByRule, Rule: r}}}}
}

// randomRule is about some of the nodes, and may have several needs. If even, all
// nodes that have a weight have the same. With beside there may be hints beside
// the rule, as of memory about nodes that are used together: mostly about other
// nodes than the rule.
func randomRule(rng *rand.Rand, nodes []int, even, beside bool) hint.Answer {
	machine := numa.Of(nodes...)
	r := &hint.Rule{Universe: machine, PreferredSize: 1 + rng.IntN(3)}
	if rng.IntN(3) == 0 {
		r.Universe &= numa.Mask(rng.Uint64() | rng.Uint64())
	}
	if rng.IntN(3) == 0 {
		r.Must = r.Universe & numa.Mask(rng.Uint64()&rng.Uint64()&rng.Uint64())
	}
	weigh := func(w *numa.Weights) (need uint64) {
		unit := 1 + rng.Uint64N(5)
		for id := range machine.All() {
			switch {
			case rng.IntN(5) == 0:
			case even:
				w[id] = unit
			default:
				w[id] = rng.Uint64N(9)
			}
		}
		return rng.Uint64N(w.Sum(r.Universe) + 1 + uint64(b2i(rng.IntN(8) == 0)))
	}
	r.Need = weigh(&r.Weights)
	if rng.IntN(3) == 0 {
		for range 1 + rng.IntN(2) {
			var also hint.Threshold
			also.Need = weigh(&also.Weights)
			r.Also = append(r.Also, also)
		}
	}
	a := hint.Answer{Kind: hint.ByRule, Rule: r}
	for rest := machine &^ r.Universe; beside && rng.IntN(3) > 0; {
		group := rest & numa.Mask(rng.Uint64())
		if rng.IntN(8) == 0 {
			group = machine & numa.Mask(rng.Uint64())
		}
		if rest &^= group; group != 0 {
			a.Hints = append(a.Hints, hint.Hint{Nodes: group, Preferred: group.Len() == r.PreferredSize})
		}
	}
	return a
}

func TestManyNodes(t *testing.T) {
	t.Parallel()
	all := ^numa.Mask(0)
	rule := func(weight func(id int) uint64, need uint64, size int) hint.Reply {
		r := &hint.Rule{Universe: all, Need: need, PreferredSize: size}
		for id := range numa.MaxNodes {
			r.Weights[id] = weight(id)
		}
		return byRule(r)
	}
	flat := func(int) uint64 { return 16 }
	// A rule of the lower half, as devices near some nodes make it.
	half := byRule(&hint.Rule{Universe: 1<<32 - 1, Need: 1, PreferredSize: 1, Weights: [numa.MaxNodes]uint64{31: 1}})
	// Memory and huge pages where nodes 0 and 1 are used by themselves, and 2 with
	// 3: preferred are sets of a size.
	memory := func(size int, need uint64) []hint.Reply {
		a := rule(flat, need, size).Answers[0]
		a.Rule.Universe &^= 15
		a.Rule.Also = []hint.Threshold{{Resource: "hugepages-2Mi", Need: 2}}
		a.Rule.Also[0].Weights[40], a.Rule.Also[0].Weights[50], a.Rule.Also[0].Weights[51] = 1, 1, 2
		for _, nodes := range []numa.Mask{numa.Of(0), numa.Of(1), numa.Of(2, 3)} {
			a.Hints = append(a.Hints, hint.Hint{Nodes: nodes, Preferred: nodes.Len() == size})
		}
		r := hint.Reply{Provider: "memory", Answers: []hint.ResourceAnswer{a, a}}
		r.Answers[1].Resource = "s"
		return []hint.Reply{r}
	}
	near := func(nodes ...int) hint.Reply {
		r := &hint.Rule{Universe: numa.Of(nodes...), Need: 1, PreferredSize: 1}
		for _, id := range nodes {
			r.Weights[id] = 1
		}
		return byRule(r)
	}
	m, err := New(Config{Policy: BestEffort, Scope: hint.PodScope}, all, numa.Distances{})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		name    string
		replies []hint.Reply
		want    hint.Hint
		// approximate: not known to be the best.
		approximate bool
	}{
		{"agreed", []hint.Reply{rule(flat, 32, 2), rule(flat, 20, 2)}, p(0, 1), false},
		{"of unlike sizes", []hint.Reply{rule(flat, 33, 3), rule(flat, 20, 2)}, n(0, 1, 2), false},
		{"devices on one node", []hint.Reply{rule(flat, 16, 1), half}, p(31), false},
		{"devices on one node, two needed", []hint.Reply{rule(flat, 32, 2), half}, n(0, 31), true},
		{"with a list", []hint.Reply{rule(flat, 32, 2), reply(n(3, 40, 50), n(7, 9))}, n(7, 9), false},
		{"with a list that decides", []hint.Reply{rule(flat, 32, 2), reply(p(3, 40), n(7, 9))}, p(3, 40), false},
		{"memory on one node", append(memory(1, 16), rule(flat, 16, 1)), p(0), false},
		{"memory on a used node near a device", append(memory(1, 16), rule(flat, 16, 1), near(1)), p(1), false},
		{"memory on a group", append(memory(2, 20), rule(flat, 32, 2)), p(2, 3), false},
		// One node has enough huge pages, and two are needed for the CPUs.
		{"memory near devices", append(memory(1, 16), rule(flat, 32, 2), near(50, 51)), n(50, 51), false},
		// Of what the rule allows only sets with nodes 40 and 50, or 51, count.
		{"memory on unused nodes", append(memory(2, 32), near(40, 50, 63)), n(40), false},
		{"memory away from devices", append(memory(1, 16), near(2)), n(2), false},
	} {
		r := m.Merge(row.replies)
		if r.Affinity != row.want || r.Approximate != row.approximate {
			t.Errorf("%s: got %+v", row.name, r)
		}
		checkPath(t, m, oracle{}, &r, row.replies)
	}
}

// Machines whose accelerators' memory is 32 nodes beside the two with CPUs.
// Whatever requests CPUs is merged exactly, because only the two can be the
// result; so is whatever requests one resource.
func TestAcceleratorMemoryAsNodes(t *testing.T) {
	t.Parallel()
	m := manager(t, BestEffort, false, 34)
	weigh := func(nodes numa.Mask, each uint64) (w numa.Weights) {
		for id := range nodes.All() {
			w[id] = each
		}
		return w
	}
	const all, sockets numa.Mask = 1<<34 - 1, 3
	cpus := func(need uint64, size int) hint.Reply {
		return byRule(&hint.Rule{Universe: sockets, Need: need, PreferredSize: size, Weights: weigh(sockets, 72)})
	}
	memory := func(need uint64, size int) hint.Reply {
		r := &hint.Rule{Universe: all, Need: need, PreferredSize: size, Weights: weigh(all&^sockets, 96)}
		r.Weights[0], r.Weights[1] = 200, 480
		return byRule(r)
	}
	for _, row := range []struct {
		name    string
		replies []hint.Reply
		want    hint.Hint
	}{
		{"one socket", []hint.Reply{cpus(72, 1), memory(96, 1)}, p(0)},
		{"the socket with memory", []hint.Reply{cpus(72, 1), memory(400, 1)}, p(1)},
		{"CPUs of both", []hint.Reply{cpus(100, 1), memory(96, 1)}, n(0, 1)},
		{"CPUs of both, memory of one", []hint.Reply{cpus(100, 2), memory(400, 1)}, n(0, 1)},
		{"CPUs of one, memory of more than both", []hint.Reply{cpus(72, 1), memory(700, 2)}, n(0, 1)},
		{"an accelerator of one", []hint.Reply{cpus(100, 2), memory(96, 1), reply(p(1), n(0, 1))}, n(0, 1)},
		{"memory alone", []hint.Reply{memory(700, 1)}, n(0, 1, 2)},
	} {
		r := m.Merge(row.replies)
		if r.Affinity != row.want || r.Approximate {
			t.Errorf("%s: got %+v", row.name, r)
		}
		checkPath(t, m, oracle{}, &r, row.replies)
	}
}

// What is promised of a result on many nodes that is not preferred: each rule
// allows it, it is no narrower than what a rule prefers, at most n² sets were
// tried, and neither the order of the replies nor a repetition changes it.
func TestEstimates(t *testing.T) {
	t.Parallel()
	outer := t
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 5))
		count := rapid.IntRange(maxExact+1, numa.MaxNodes).Draw(t, "nodes")
		m := manager(outer, BestEffort, rapid.Bool().Draw(t, "closest"), count)
		even := rapid.Bool().Draw(t, "even")
		var rules []*hint.Rule
		var replies []hint.Reply
		for range rapid.IntRange(1, 5).Draw(t, "rules") {
			a := randomRule(rng, m.nodes.IDs(), even, false)
			a.Rule.Universe, a.Rule.PreferredSize = m.nodes, 0
			if !a.Rule.Allows(m.nodes) {
				continue
			}
			// What an idle machine would need is never more than what is needed now.
			a.Rule.PreferredSize = search(a.Rule).Fewest() - rng.IntN(2)
			rules = append(rules, a.Rule)
			replies = append(replies, byRule(a.Rule))
		}
		r := m.Merge(replies)
		if r.Stage != NotPreferred {
			return
		}
		for _, rule := range rules {
			if !rule.Allows(r.Affinity.Nodes) || r.Affinity.Nodes.Len() < rule.PreferredSize {
				t.Fatalf("%s of %d does not serve %+v", r.Affinity.Nodes, count, rule)
			}
		}
		if again := m.Merge(shuffled(rng, replies)); again.Affinity != r.Affinity || again.Approximate != r.Approximate {
			t.Fatalf("shuffled: %+v, before: %+v", again, r)
		}
		lists, _ := read(nil, replies)
		tries := Result{B: r.B}
		if m.estimate(lists, m.nodes, &tries); tries.Work > count*count || tries.Affinity != r.Affinity {
			t.Fatalf("%d sets of %d nodes were tried: %+v", tries.Work, count, tries)
		}
	})
}

// Weights without any pattern, and needs that leave no room: a result comes that
// some choice leads to, although the rules and the sets beside them have no set in
// common.
func TestHardRules(t *testing.T) {
	t.Parallel()
	m, err := New(Config{Policy: BestEffort, Scope: hint.PodScope}, everything, numa.Distances{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var together, apart []hint.Reply
	for i := range 3 {
		r := &hint.Rule{Universe: everything, PreferredSize: 10 + i}
		for id := range r.Weights {
			r.Weights[id] = 1<<30 + rng.Uint64N(1<<30)
		}
		r.Need = r.Weights.Sum(r.Universe) / 4 * 3
		together = append(together, byRule(r))
		one := *r
		one.Universe = one.Universe.Without(61 + (i+1)%3) // which the next one insists on
		one.Must = numa.Of(61 + i)
		apart = append(apart, byRule(&one))
		apart[i].Answers[0].Hints = []hint.Hint{{Nodes: numa.Of(40+i, 50)}}
	}
	for name, replies := range map[string][]hint.Reply{"together": together, "apart": apart} {
		r := m.Merge(replies)
		if !r.Approximate || r.Stage != NotPreferred || len(r.Path) != len(replies) {
			t.Errorf("%s: %+v", name, r)
		}
		checkPath(t, m, oracle{}, &r, replies)
	}
}

func TestConflictOfRules(t *testing.T) {
	t.Parallel()
	m := manager(t, Restricted, false, 4)
	weights := [numa.MaxNodes]uint64{1, 1, 1, 1}
	one := byRule(&hint.Rule{Universe: 15, Need: 1, PreferredSize: 1, Weights: weights})
	two := byRule(&hint.Rule{Universe: 15, Need: 2, PreferredSize: 2, Weights: weights})
	none := byRule(&hint.Rule{Universe: 15, Need: 2, PreferredSize: 1, Weights: weights})
	for _, row := range []struct {
		replies []hint.Reply
		want    int
	}{
		{[]hint.Reply{one, two}, 2},
		{[]hint.Reply{one, reply(p(0, 1))}, 2},
		{[]hint.Reply{reply(p(0, 1)), two, one}, 2},
		{[]hint.Reply{two, none}, 1},
	} {
		if r := m.Merge(row.replies); r.Admit || len(r.Conflict) != row.want {
			t.Errorf("%+v: conflict of %d, want %d", r, len(r.Conflict), row.want)
		}
	}
}

func BenchmarkRules(b *testing.B) {
	run := func(name string, count, rules int, closest bool, weight func(i, id int) uint64, need func(i int) uint64, size func(i int) int) {
		b.Run(fmt.Sprintf("nodes=%d/rules=%d/%s", count, rules, name), func(b *testing.B) {
			m := manager(b, BestEffort, closest, count)
			var replies []hint.Reply
			for i := range rules {
				r := &hint.Rule{Universe: numa.Mask(1)<<count - 1, Need: need(i), PreferredSize: size(i)}
				for id := range count {
					r.Weights[id] = weight(i, id)
				}
				replies = append(replies, byRule(r))
			}
			b.ReportAllocs()
			for b.Loop() {
				m.Merge(replies)
			}
		})
	}
	flat := func(int, int) uint64 { return 16 }
	rng := rand.New(rand.NewPCG(1, 2))
	var uneven [5][64]uint64
	for i := range uneven {
		for j := range uneven[i] {
			uneven[i][j] = rng.Uint64N(9)
		}
	}
	for _, count := range []int{8, 16, 32, 64} {
		run("preferred", count, 5, false, flat, func(int) uint64 { return 30 }, func(int) int { return 2 })
		run("not-preferred", count, 5, false, flat, func(i int) uint64 { return 16 * uint64(1+i%3) }, func(i int) int { return 1 + i%3 })
		run("not-preferred,closest", count, 5, true, flat, func(i int) uint64 { return 16 * uint64(1+i%3) },
			func(i int) int { return 1 + i%3 })
	}
	mixed := func(i, id int) uint64 { return uneven[i][id] }
	run("not-preferred,mixed", 16, 3, false, mixed, func(i int) uint64 { return 20 }, func(i int) int { return 2 + i%2 })
	run("not-preferred,mixed", 32, 2, false, mixed, func(i int) uint64 { return 20 }, func(i int) int { return 2 + i%2 })
}
