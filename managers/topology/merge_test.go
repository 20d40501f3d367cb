package topology

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

func p(ids ...int) hint.Hint { return hint.Hint{Nodes: numa.Of(ids...), Preferred: true} }
func n(ids ...int) hint.Hint { return hint.Hint{Nodes: numa.Of(ids...)} }

var (
	anyP = hint.Hint{Any: true, Preferred: true}
	anyN = hint.Hint{Any: true}
)

// list makes a reply of one resource; without hints it is Impossible.
func reply(hints ...hint.Hint) hint.Reply {
	a := hint.Answer{Kind: hint.Options, Hints: hints}
	if len(hints) == 0 {
		a = hint.Answer{Kind: hint.Impossible, Reason: "nothing fits"}
	}
	return hint.Reply{Provider: "p", Answers: []hint.ResourceAnswer{{Resource: "r", Answer: a}}}
}

// manager makes one for nodes 0 to count-1 where near pairs are two apart.
func manager(t testing.TB, policy Policy, closest bool, count int) *Manager {
	t.Helper()
	ids := make([]int, count)
	lists := map[int][]int{}
	for i := range ids {
		ids[i] = i
		for j := range count {
			d := 12
			switch {
			case i == j:
				d = 10
			case i/2 == j/2:
				d = 11
			}
			lists[i] = append(lists[i], d)
		}
	}
	distances, err := numa.FromLists(ids, lists)
	if err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{
		Policy:  policy,
		Scope:   hint.ContainerScope,
		Options: map[string]string{OptionPreferClosest: fmt.Sprint(closest)},
	}, numa.Of(ids...), distances)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMergeOnTwoNodes(t *testing.T) {
	t.Parallel()
	all := hint.Reply{Provider: "m"}
	for _, row := range []struct {
		name                  string
		replies               []hint.Reply
		bestEffort, single    hint.Hint
		restricted, singleFit bool
	}{
		{"a device decides the node", []hint.Reply{reply(p(1), n(0, 1)), reply(p(0), p(1), n(0, 1)), all}, p(1), p(1), true, true},
		{"device and CPUs apart", []hint.Reply{reply(p(1)), reply(p(0))}, n(0, 1), anyN, false, false},
		{"a device on both nodes", []hint.Reply{reply(p(0, 1)), reply(p(0), n(0, 1))}, n(0, 1), anyN, false, false},
		{"impossible", []hint.Reply{reply(), reply(p(0), p(1))}, n(0), anyN, false, false},
		{"an unknown node", []hint.Reply{reply(p(9))}, n(0, 1), anyN, false, false},
		{"unknown bits beside known ones", []hint.Reply{reply(p(0, 9)), reply(p(0, 9))}, p(0), anyN, true, false},
		{"nobody cares", []hint.Reply{reply(anyP), all}, p(0, 1), anyP, true, true},
		{"nobody is there", nil, p(0, 1), anyP, true, true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			for policy, want := range map[Policy]verdict{
				BestEffort:     {row.bestEffort, true},
				Restricted:     {row.bestEffort, row.restricted},
				SingleNUMANode: {row.single, row.singleFit},
				None:           {anyN, true},
			} {
				r := manager(t, policy, false, 2).Merge(row.replies)
				if got := (verdict{r.Affinity, r.Admit}); got != want {
					t.Errorf("%s: got %+v, want %+v", policy, got, want)
				}
			}
		})
	}
}

func TestMergeByDistance(t *testing.T) {
	t.Parallel()
	three := reply(p(0, 2), p(2, 3), p(0, 1))
	for _, row := range []struct {
		name              string
		replies           []hint.Reply
		narrowest, nearby hint.Hint
	}{
		{"equally near", []hint.Reply{three, three}, p(0, 1), p(0, 1)},
		{"the nearer pair", []hint.Reply{reply(n(0, 1, 2, 3), n(0, 1)), reply(n(1, 2), n(2, 3))}, n(1, 2), n(2, 3)},
		{"one of the needed size", []hint.Reply{reply(n(0, 1, 2)), reply(n(1, 2, 3))}, n(1, 2), n(1, 2)},
		{"the size nearest to what is needed", []hint.Reply{reply(n(0, 1, 2, 3)), reply(n(1, 2, 3), n(0))}, n(1, 2, 3), n(1, 2, 3)},
	} {
		for closest, want := range map[bool]hint.Hint{false: row.narrowest, true: row.nearby} {
			if got := manager(t, BestEffort, closest, 4).Merge(row.replies); got.Affinity != want {
				t.Errorf("%s, closest %t: got %+v, want %+v", row.name, closest, got.Affinity, want)
			}
		}
	}
}

func TestMergeWithoutNodes(t *testing.T) {
	t.Parallel()
	for policy, want := range map[Policy]verdict{
		BestEffort:     {ledger.Affinity{}, true},
		Restricted:     {ledger.Affinity{}, false},
		SingleNUMANode: {anyN, false},
	} {
		m, err := New(Config{Policy: policy, Scope: hint.PodScope}, 0, numa.Distances{})
		if err != nil {
			t.Fatal(err)
		}
		for _, replies := range [][]hint.Reply{nil, {reply(p(0))}} {
			r := m.Merge(replies)
			if got := (verdict{r.Affinity, r.Admit}); got != want {
				t.Errorf("%s: got %+v, want %+v", policy, got, want)
			}
		}
	}
}

// problem is a machine and the answers to merge.
type problem struct {
	nodes   []int
	dist    numa.Distances
	replies []hint.Reply
}

// drawMachine draws up to most nodes, with gaps in their ids if those are drawn.
func drawMachine(rng *rand.Rand, most int) problem {
	var pr problem
	step := []int{1, 1, 1, 2, numa.MaxNodes / most}[rng.IntN(5)]
	for i := range 1 + rng.IntN(most) {
		pr.nodes = append(pr.nodes, i*step)
	}
	rows := map[int]map[int]int{}
	for _, i := range pr.nodes {
		rows[i] = map[int]int{}
		for _, j := range pr.nodes {
			rows[i][j] = 10 + rng.IntN(4)*(1-b2i(i == j))
		}
	}
	var err error
	if pr.dist, err = numa.NewDistances(rows); err != nil {
		panic(err)
	}
	return pr
}

// drawProblem draws a machine of up to most nodes and answers of any kind:
// arbitrary lists with foreign bits, empty masks, hints without nodes and
// repetitions, lists such as the managers give, and rules, some with hints beside
// them. Half of the problems have only lists, or only rules.
func drawProblem(t *rapid.T, most int) problem {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	pr := drawMachine(rng, most)
	kind, even := rng.IntN(4), rng.IntN(2) == 0
	for provider := range rng.IntN(5) {
		r := hint.Reply{Provider: fmt.Sprint("p", provider)}
		for resource := range rng.IntN(3) {
			var a hint.Answer
			if kind == 0 || kind > 1 && rng.IntN(2) == 0 {
				a = randomAnswer(rng, pr.nodes)
			} else {
				a = randomRule(rng, pr.nodes, even, kind > 1)
			}
			answers := 1 + 2*b2i(rng.IntN(8) == 0) // as of memory, all resources alike
			for i := range answers {
				r.Answers = append(r.Answers, hint.ResourceAnswer{Resource: fmt.Sprint("r", resource, i), Answer: a})
			}
		}
		pr.replies = append(pr.replies, r)
	}
	return pr
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func randomAnswer(rng *rand.Rand, nodes []int) hint.Answer {
	machine := numa.Of(nodes...)
	switch rng.IntN(8) {
	case 0:
		return hint.Answer{Kind: hint.NoPreference}
	case 1:
		return hint.Answer{Kind: hint.Impossible}
	case 2, 3, 4: // threshold over some of the nodes, as CPUs and devices have it
		universe := machine & numa.Mask(rng.Uint64())
		need, size := 1+rng.IntN(6), 1+rng.IntN(3)
		weight := map[int]int{}
		for _, id := range nodes {
			weight[id] = rng.IntN(4)
		}
		a := hint.Answer{Kind: hint.Options}
		for m := range numa.Subsets(universe) {
			sum := 0
			for _, id := range m.IDs() {
				sum += weight[id]
			}
			if sum >= need {
				a.Hints = append(a.Hints, hint.Hint{Nodes: m, Preferred: m.Len() == size})
			}
		}
		if len(a.Hints) == 0 {
			a.Kind = hint.Impossible
		}
		return a
	}
	a := hint.Answer{Kind: hint.Options}
	for range 1 + rng.IntN(6) {
		h := hint.Hint{Preferred: rng.IntN(2) == 0}
		switch rng.IntN(8) {
		case 0:
			h.Any = true
		case 1: // may have bits that the machine does not have
			h.Nodes = machine&numa.Mask(rng.Uint64()) | 1<<rng.IntN(numa.MaxNodes)
		case 2: // few nodes, or none
			h.Nodes = machine & numa.Mask(rng.Uint64()&rng.Uint64()&rng.Uint64())
		default:
			h.Nodes = machine & numa.Mask(rng.Uint64())
		}
		a.Hints = append(a.Hints, h)
	}
	return a
}

// configurations calls do with every policy that merges, with and without the
// option, for the problem's machine.
func (pr problem) configurations(t rapid.TB, do func(*Manager, oracle)) {
	for _, policy := range []Policy{BestEffort, Restricted, SingleNUMANode} {
		for _, closest := range []bool{false, true} {
			m, err := New(Config{
				Policy:  policy,
				Scope:   hint.PodScope,
				Options: map[string]string{OptionPreferClosest: fmt.Sprint(closest)},
			}, numa.Of(pr.nodes...), pr.dist)
			if err != nil {
				t.Fatal(err)
			}
			do(m, oracle{policy, closest, pr.nodes, pr.dist})
		}
	}
}

// checkProblem holds the merge of a problem against the formula, under every
// configuration, and what best-effort would estimate on more nodes.
func checkProblem(t rapid.TB, pr problem) {
	f := newFormula(pr.nodes, written(pr.replies))
	pr.configurations(t, func(m *Manager, o oracle) {
		want := f.merge(o)
		if r := m.Merge(pr.replies); r.Approximate {
			t.Fatalf("a merge on %d nodes is approximate", len(pr.nodes))
		}
		checkMerge(t, m, o, pr, want)
		if m.policy == BestEffort {
			m.exact = 0
			checkEstimate(t, m, o, pr, f)
		}
	})
}

func checkMerge(t rapid.TB, m *Manager, o oracle, pr problem, want verdict) {
	r := m.Merge(pr.replies)
	if got := (verdict{r.Affinity, r.Admit}); got != want {
		t.Fatalf("%s, closest %t, exact up to %d: got %+v, want %+v\nnodes %v\n%s",
			o.policy, o.closest, m.exact, got, want, pr.nodes, shown(pr.replies))
	}
	checkPath(t, m, o, &r, pr.replies)
}

// checkEstimate makes sure of what is promised of a result on many nodes: it is
// exact where it is not marked, some choice leads to it, and if any set of the
// needed size serves all requests, the result is such a set.
func checkEstimate(t rapid.TB, m *Manager, o oracle, pr problem, f *formula) {
	r := m.Merge(pr.replies)
	fail := func(text string) {
		t.Helper()
		t.Fatalf("closest %t: %+v, which %s\nnodes %v\n%s", o.closest, r.Affinity, text, pr.nodes, shown(pr.replies))
	}
	switch {
	case !r.Approximate:
		checkMerge(t, m, o, pr, f.merge(o))
		return
	case r.Affinity.Preferred || r.Stage != NotPreferred:
		fail("is not what an estimate may be")
	case !slices.Contains(f.reached, r.Affinity.Nodes):
		fail("no choice leads to")
	}
	checkPath(t, m, o, &r, pr.replies)
	lists, _ := read(nil, pr.replies)
	floor, common := 1, m.nodes
	for i := range lists {
		floor = max(floor, lists[i].least, lists[i].preferredSize())
		common &= lists[i].mentioned
	}
	floor = min(floor, common.Len())
	if served := f.served(floor); len(served) > 0 && !slices.Contains(served, r.Affinity.Nodes) {
		fail(fmt.Sprintf("does not serve all, as %v would (%d nodes at least)", served, floor))
	}
}

// shown writes answers with their rules.
func shown(replies []hint.Reply) string {
	var text strings.Builder
	for _, reply := range replies {
		for _, a := range reply.Answers {
			fmt.Fprintf(&text, "%s/%s: %s %v %+v\n", reply.Provider, a.Resource, a.Kind, a.Hints, a.Rule)
		}
	}
	return text.String()
}

// checkPath makes sure that the path is a choice of the problem and leads to the
// result.
func checkPath(t rapid.TB, m *Manager, o oracle, r *Result, replies []hint.Reply) {
	if r.Stage == NoCandidate || r.Path == nil {
		return
	}
	at := 0
	var chosen []hint.Hint
	for _, reply := range replies {
		for _, a := range reply.Answers {
			if a.Kind == hint.NoPreference {
				continue
			}
			if at == len(r.Path) || r.Path[at].Source != (Source{reply.Provider, a.Resource}) {
				t.Fatalf("path %+v does not follow replies %+v", r.Path, replies)
			}
			h := r.Path[at].Hint
			found := h == anyN && (a.Kind == hint.Impossible || a.Kind == hint.ByRule && len(a.Hints) == 0 &&
				!a.Rule.Allows(a.Rule.Universe))
			for _, have := range a.Hints {
				found = found || have == h
			}
			if a.Kind == hint.ByRule {
				found = found || a.Rule.Allows(h.Nodes) && h.Preferred == (h.Nodes.Len() == a.Rule.PreferredSize)
			}
			if !found {
				t.Fatalf("path takes %+v, which %s did not answer", h, a.Resource)
			}
			chosen = append(chosen, h)
			at++
		}
	}
	if at != len(r.Path) {
		t.Fatalf("path %+v is longer than the lists of %+v", r.Path, replies)
	}
	want := r.Affinity
	if want.Any {
		want = ledger.Affinity{Nodes: m.nodes, Preferred: want.Preferred}
	}
	if c := o.candidate(m.nodes, chosen); c.Nodes != want.Nodes || want.Preferred && !c.Preferred {
		t.Fatalf("path %+v leads to %+v, not to %+v", r.Path, c, r.Affinity)
	}
}

// often is rapid.Check, rounds times over; -rapid.checks (100 unless given) is
// how many cases a round has.
func often(t *testing.T, rounds int, property func(*rapid.T)) {
	t.Helper()
	for range rounds {
		rapid.Check(t, property)
	}
}

// 33,600 problems under six configurations are 201,600 merges, and those of
// best-effort are estimated once more.
func TestMergeAgreesWithOracle(t *testing.T) {
	t.Parallel()
	for part := range 8 {
		t.Run(fmt.Sprint(part), func(t *testing.T) {
			t.Parallel()
			often(t, 42, func(t *rapid.T) { checkProblem(t, drawProblem(t, 9)) })
		})
	}
}

// The same on machines of up to as many nodes as an exact merge may have.
func TestMergeAgreesUpToTwelveNodes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) { checkProblem(t, drawProblem(t, maxExact)) })
}

func FuzzMergeAgreesWithOracle(f *testing.F) {
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) { checkProblem(t, drawProblem(t, 9)) }))
}

// The formula is the definition, wherever that can be walked through.
func TestFormulaAgreesWithOracle(t *testing.T) {
	t.Parallel()
	often(t, 20, func(t *rapid.T) {
		pr := drawProblem(t, 9)
		lists := written(pr.replies)
		for !few(lists) {
			at := 0
			for i := range lists {
				if len(lists[i]) > len(lists[at]) {
					at = i
				}
			}
			lists[at] = lists[at][:len(lists[at])/2]
		}
		f := newFormula(pr.nodes, lists)
		pr.configurations(t, func(_ *Manager, o oracle) {
			if got, want := f.merge(o), o.merge(lists); got != want {
				t.Fatalf("%s, closest %t: got %+v, want %+v\nnodes %v\nlists %+v", o.policy, o.closest, got, want, pr.nodes, lists)
			}
		})
	})
}

func TestOrderDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		pr := drawProblem(t, 9)
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "shuffle"), 2))
		pr.configurations(t, func(m *Manager, _ oracle) {
			before := m.Merge(pr.replies)
			after := m.Merge(shuffled(rng, pr.replies))
			if before.Affinity != after.Affinity || before.Admit != after.Admit || before.Stage != after.Stage || before.B != after.B {
				t.Fatalf("shuffled: %+v, before: %+v", after, before)
			}
		})
	})
}

// shuffled returns the replies with providers, resources and hints in another
// order, and some hints twice.
func shuffled(rng *rand.Rand, replies []hint.Reply) []hint.Reply {
	out := make([]hint.Reply, len(replies))
	for i, at := range rng.Perm(len(replies)) {
		r := replies[at]
		out[i].Provider = r.Provider
		for _, at := range rng.Perm(len(r.Answers)) {
			a := r.Answers[at]
			hints := a.Hints
			a.Hints = nil
			for _, at := range rng.Perm(len(hints)) {
				a.Hints = append(a.Hints, hints[at])
				if rng.IntN(3) == 0 {
					a.Hints = append(a.Hints, hints[at])
				}
			}
			out[i].Answers = append(out[i].Answers, a)
		}
	}
	return out
}
