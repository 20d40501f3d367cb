package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// byRule makes a reply of one rule.
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
	weigh := func(w *hint.Weights) (need uint64) {
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

// What quick tries find when there is no time for more is a set that some choice
// leaves.
func TestTriesAreLegal(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 3))
		pr := drawMachine(rng, 9)
		for range 1 + rng.IntN(4) {
			pr.replies = append(pr.replies, byRule(randomRule(rng, pr.nodes, false, false).Rule))
		}
		f := newFormula(pr.nodes, written(pr.replies))
		lists, _ := read(nil, pr.replies)
		universe, b := numa.Of(pr.nodes...), 0
		var rules []*list
		for i := range lists {
			if l := &lists[i]; l.rule != nil {
				universe &= l.mentioned
				b = max(b, l.least)
				rules = append(rules, l)
			}
		}
		if universe == 0 || len(rules) < len(lists) {
			return
		}
		s := newSparing(&Manager{}, rules, universe, b)
		s.steps = s.limit + 1
		if nodes := s.best(); !slices.Contains(f.reached, nodes) {
			t.Fatalf("%s of %s cannot be left", nodes, universe)
		}
	})
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
	}{
		{"agreed", []hint.Reply{rule(flat, 32, 2), rule(flat, 20, 2)}, p(0, 1)},
		{"of unlike sizes", []hint.Reply{rule(flat, 33, 3), rule(flat, 20, 2)}, n(0, 1, 2)},
		{"devices on one node", []hint.Reply{rule(flat, 16, 1), half}, p(31)},
		{"devices on one node, two needed", []hint.Reply{rule(flat, 32, 2), half}, n(0, 1)},
		{"with a list", []hint.Reply{rule(flat, 32, 2), reply(n(3, 40, 50), n(7, 9))}, n(7, 9)},
		{"with a list that decides", []hint.Reply{rule(flat, 32, 2), reply(p(3, 40), n(7, 9))}, p(3, 40)},
		{"memory on one node", append(memory(1, 16), rule(flat, 16, 1)), p(0)},
		{"memory on a used node near a device", append(memory(1, 16), rule(flat, 16, 1), near(1)), p(1)},
		{"memory on a group", append(memory(2, 20), rule(flat, 32, 2)), p(2, 3)},
		// One node has enough huge pages, and two are needed for the CPUs.
		{"memory near devices", append(memory(1, 16), rule(flat, 32, 2), near(50, 51)), n(50, 51)},
		// Of what the rule allows only sets with nodes 40 and 50, or 51, count.
		{"memory on unused nodes", append(memory(2, 32), near(40, 50, 63)), n(40)},
		{"memory away from devices", append(memory(1, 16), near(2)), n(2)},
	} {
		r := m.Merge(row.replies)
		if r.Affinity != row.want || r.Approximate {
			t.Errorf("%s: got %+v, want %+v", row.name, r, row.want)
		}
	}
}

// Weights without any pattern, and slacks that leave no room: whatever comes, it
// comes, and some choice leads to it. Rules with the same nodes as all others, as
// on a whole machine, are easy even so.
func TestHardRules(t *testing.T) {
	t.Parallel()
	machine := everything
	m, err := New(Config{Policy: BestEffort, Scope: hint.PodScope}, machine, numa.Distances{})
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var easy, hard []hint.Reply
	for i := range 3 {
		r := &hint.Rule{Universe: machine, Need: 20 << 30, PreferredSize: 10 + i}
		for id := range r.Weights {
			r.Weights[id] = 1<<30 + rng.Uint64N(1<<30)
		}
		easy = append(easy, byRule(r))
		tight := *r
		tight.Universe &^= 7 << 61
		tight.Need = tight.Weights.Sum(tight.Universe) / 4 * 3
		one := byRule(&tight)
		one.Answers[0].Hints = []hint.Hint{{Nodes: numa.Of(61 + i)}}
		hard = append(hard, one)
	}
	r := m.Merge(easy)
	if r.Approximate || r.Stage != NotPreferred || r.Affinity.Nodes != 1<<r.B-1 {
		t.Errorf("easy rules: %+v", r)
	}
	checkPath(t, m, oracle{}, &r, easy)
	r = m.Merge(hard)
	if !r.Approximate || r.Stage != NotPreferred || r.B != 1 || len(r.Path) != len(hard) {
		t.Errorf("hard rules: %+v", r)
	}
	checkPath(t, m, oracle{}, &r, hard)
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
		run("not-preferred,closest", count, 5, true, flat, func(i int) uint64 { return 16 * uint64(1+i%3) }, func(i int) int { return 1 + i%3 })
	}
	mixed := func(i, id int) uint64 { return uneven[i][id] }
	run("not-preferred,mixed", 16, 3, false, mixed, func(i int) uint64 { return 20 }, func(i int) int { return 2 + i%2 })
	run("not-preferred,mixed", 32, 2, false, mixed, func(i int) uint64 { return 20 }, func(i int) int { return 2 + i%2 })
}
