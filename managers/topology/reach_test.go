package topology

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/numa"
)

// naive computes what is reachable by trying all pairs, list by list.
func naive(universe numa.Mask, lists []*list) map[numa.Mask]bool {
	reached := map[numa.Mask]bool{universe: true}
	for _, l := range lists {
		next := map[numa.Mask]bool{}
		for have := range reached {
			for _, h := range l.hints {
				if both := have & mask(h); both != 0 {
					next[both] = true
				}
			}
		}
		reached = next
	}
	return reached
}

// drawLists draws lists of up to most hints on a universe of count nodes whose
// ids may have gaps.
func drawLists(t *rapid.T, count, most int) (numa.Mask, []*list) {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 4))
	var universe numa.Mask
	gap := 1 + rng.IntN(numa.MaxNodes/count)
	for i := range count {
		universe = universe.With(i * gap)
	}
	var lists []*list
	for range 1 + rng.IntN(5) {
		l := &list{}
		for range 1 + rng.IntN(most) {
			l.hints = append(l.hints, hint.Hint{Nodes: universe & numa.Mask(rng.Uint64()|rng.Uint64())})
		}
		// As after the restriction, every list mentions every node.
		l.hints = append(l.hints, hint.Hint{Nodes: universe})
		lists = append(lists, l)
	}
	return universe, lists
}

func TestReachable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		universe, lists := drawLists(t, rapid.IntRange(1, 9).Draw(t, "nodes"), 300)
		want := slices.Sorted(maps.Keys(naive(universe, lists)))
		d := newDense(universe)
		d.reach(lists)
		if got := slices.Sorted(d.sets()); !slices.Equal(got, want) {
			t.Fatalf("dense: got %v, want %v", got, want)
		}
	})
}

// The counts of choices are started again before they could overflow.
func TestReachableByManyChoices(t *testing.T) {
	t.Parallel()
	universe := numa.Mask(1<<8 - 1)
	full := &list{hints: fullList(8, 1)}
	var lists []*list
	for range 20 {
		lists = append(lists, full)
	}
	d := newDense(universe)
	d.reach(lists)
	if got := len(slices.Collect(d.sets())); got != 255 {
		t.Errorf("%d sets, want 255", got)
	}
}
