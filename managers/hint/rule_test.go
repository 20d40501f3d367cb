package hint_test

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/fault"
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
	if _, err := rule.Expand(3); fault.ClassOf(err) != fault.Exhausted {
		t.Errorf("limit 3: %v", err)
	}
	rule.Must = rule.Must.With(7)
	if got, err := rule.Expand(4); err != nil || len(got) != 0 {
		t.Errorf("must outside the universe: %v, %v", got, err)
	}
}

func TestWeightSaturates(t *testing.T) {
	t.Parallel()
	rule := hint.Rule{Universe: numa.Of(0, 1)}
	rule.Weights[0], rule.Weights[1] = math.MaxUint64, 2
	if got := rule.Weight(numa.Of(0, 1)); got != math.MaxUint64 {
		t.Errorf("got %d", got)
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
