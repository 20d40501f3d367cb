package hint_test

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

func TestExpand(t *testing.T) {
	t.Parallel()
	rule := hint.Rule{Universe: numa.Of(1, 3, 5), Must: numa.Of(3), Need: 4, PreferredSize: 2}
	rule.Weights[1], rule.Weights[3], rule.Weights[5], rule.Weights[7] = 1, 2, 2, 9
	got, err := rule.Expand(4)
	want := []hint.Hint{{Nodes: numa.Of(3, 5), Preferred: true}, {Nodes: numa.Of(1, 3, 5)}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := rule.Expand(3); errdefs.ClassOf(err) != errdefs.Exhausted {
		t.Errorf("limit 3: %v", err)
	}
	rule.Must = rule.Must.With(7)
	if got, err := rule.Expand(4); err != nil || len(got) != 0 {
		t.Errorf("must outside the universe: %v, %v", got, err)
	}
}

// Expand lists exactly the allowed sets, in order.
func TestExpandListsTheFamily(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		rule := hint.Rule{
			Universe:      numa.Mask(rapid.Uint64Range(0, 1<<7-1).Draw(t, "universe")),
			Must:          numa.Mask(rapid.Uint64Range(0, 1<<7-1).Draw(t, "must") & rapid.Uint64Range(0, 1<<7-1).Draw(t, "and")),
			Need:          rapid.Uint64Range(0, 9).Draw(t, "need"),
			PreferredSize: rapid.IntRange(0, 7).Draw(t, "size"),
		}
		for i := range 7 {
			rule.Weights[i] = rapid.Uint64Range(0, 3).Draw(t, "weight")
		}
		got, err := rule.Expand(1 << 7)
		if err != nil {
			t.Fatal(err)
		}
		want := []hint.Hint{}
		for m := range numa.Subsets(rule.Universe) {
			if rule.Allows(m) {
				want = append(want, hint.Hint{Nodes: m, Preferred: m.Len() == rule.PreferredSize})
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%+v: got %v, want %v", rule, got, want)
		}
	})
}

// An answer by rule lists as the rule and the sets beside it, and is refused where
// it cannot be merged.
func TestRuleWithHints(t *testing.T) {
	t.Parallel()
	rule := func() *hint.Rule {
		r := &hint.Rule{Universe: numa.Of(0, 1, 2), Need: 2, PreferredSize: 1, Also: make([]hint.Threshold, 1)}
		r.Weights[0], r.Weights[1], r.Weights[2] = 1, 2, 2
		r.Also[0] = hint.Threshold{Resource: "hugepages-2Mi", Need: 1}
		r.Also[0].Weights[1] = 1
		return r
	}
	beside := []hint.Hint{{Nodes: numa.Of(3)}, {Nodes: numa.Of(1, 2)}}
	answer := hint.Answer{Kind: hint.ByRule, Rule: rule(), Hints: beside}
	want := []hint.Hint{
		{Nodes: numa.Of(1), Preferred: true}, {Nodes: numa.Of(3)}, {Nodes: numa.Of(0, 1)}, {Nodes: numa.Of(1, 2)},
		{Nodes: numa.Of(0, 1, 2)},
	}
	if got, err := answer.Expand(8); err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := answer.Expand(4); errdefs.ClassOf(err) != errdefs.Exhausted {
		t.Errorf("limit 4: %v", err)
	}
	for name, row := range map[string]struct {
		change func(*hint.Answer)
		want   string
	}{
		"good":               {func(*hint.Answer) {}, ""},
		"no rule":            {func(a *hint.Answer) { a.Rule = nil }, "there is no rule"},
		"nodes of nobody":    {func(a *hint.Answer) { a.Rule.Universe = numa.Of(9) }, "the machine has 0-3"},
		"must outside":       {func(a *hint.Answer) { a.Rule.Must = numa.Of(3) }, "insists on nodes 3"},
		"weight too large":   {func(a *hint.Answer) { a.Rule.Weights[0] = hint.MaxWeight + 1 }, "expected at most"},
		"need too large":     {func(a *hint.Answer) { a.Rule.Also[0].Need = 1 << 63 }, "expected at most"},
		"any beside":         {func(a *hint.Answer) { a.Hints = []hint.Hint{{Any: true}} }, "next to the rule names no nodes"},
		"unsorted beside":    {func(a *hint.Answer) { a.Hints = []hint.Hint{{Nodes: 6}, {Nodes: 8}} }, "out of order"},
		"of unknown nodes":   {func(a *hint.Answer) { a.Hints = []hint.Hint{{Nodes: 32}} }, "the machine has 0-3"},
		"options, and empty": {func(a *hint.Answer) { *a = hint.Answer{Kind: hint.Options} }, "there are no options"},
	} {
		a := hint.ResourceAnswer{Resource: "r", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule(), Hints: beside}}
		row.change(&a.Answer)
		err := hint.CheckReply(hint.Reply{Provider: "p", Answers: []hint.ResourceAnswer{a}}, numa.Of(0, 1, 2, 3))
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// Whatever is sorted and there once is usable, and nothing else.
func TestOrderOfHints(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		hints := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) hint.Hint {
			h := hint.Hint{Preferred: rapid.Bool().Draw(t, "preferred"), Any: rapid.IntRange(0, 5).Draw(t, "any") == 0}
			if !h.Any {
				h.Nodes = numa.Mask(rapid.Uint64Range(1, 31).Draw(t, "nodes"))
			}
			return h
		}), 1, 8).Draw(t, "hints")
		sorted := slices.Clone(hints)
		hint.SortHints(sorted)
		want := slices.Equal(slices.Compact(sorted), hints)
		a := hint.ResourceAnswer{Resource: "r", Answer: hint.Answer{Kind: hint.Options, Hints: hints}}
		err := hint.CheckReply(hint.Reply{Provider: "p", Answers: []hint.ResourceAnswer{a}}, 31)
		if (err == nil) != want {
			t.Fatalf("%v: %v", hints, err)
		}
	})
}
