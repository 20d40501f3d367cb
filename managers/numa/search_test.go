package numa

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestWeightSaturates(t *testing.T) {
	t.Parallel()
	w := Weights{math.MaxUint64, 2}
	if got := w.Sum(Of(0, 1)); got != math.MaxUint64 {
		t.Errorf("got %d", got)
	}
}

// drawSearch draws a search on up to nine nodes, some of which have gaps between
// their ids, with up to three needs that often leave little room.
func drawSearch(t *rapid.T) *Search {
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 6))
	gap := 1 + rng.IntN(7)
	s := &Search{}
	for i := range rng.IntN(10) {
		s.Universe = s.Universe.With(i * gap)
	}
	if rng.IntN(3) == 0 {
		s.Must = Mask(rng.Uint64()&rng.Uint64()) & s.Universe
	}
	if rng.IntN(20) == 0 {
		s.Must = s.Must.With(rng.IntN(MaxNodes))
	}
	for range rng.IntN(4) {
		n := Need{Weights: new(Weights)}
		for id := range s.Universe.All() {
			n.Weights[id] = rng.Uint64N(6)
		}
		n.Amount = rng.Uint64N(n.Weights.Sum(s.Universe) + 2)
		s.Needs = append(s.Needs, n)
	}
	if rng.IntN(2) == 0 && s.Universe != 0 {
		rows := map[int]map[int]int{}
		for i := range s.Universe.All() {
			rows[i] = map[int]int{}
			for j := range s.Universe.All() {
				rows[i][j] = 10 + rng.IntN(4)
			}
		}
		distances, err := NewDistances(rows)
		if err != nil {
			t.Fatal(err)
		}
		s.Distances = &distances
	}
	return s
}

// TestSearchAgreesWithAllSubsets compares every answer of a search with a look at
// all subsets.
func TestSearchAgreesWithAllSubsets(t *testing.T) {
	t.Parallel()
	for range 20 {
		rapid.Check(t, checkSearch)
	}
}

func checkSearch(t *rapid.T) {
	s := drawSearch(t)
	bySize := map[int][]Mask{}
	fewest := s.Universe.Len()
	var narrowest Mask
	for m := range Subsets(s.Universe) {
		enough := s.Must.IsSubsetOf(m)
		for _, n := range s.Needs {
			enough = enough && n.Weights.Sum(m) >= n.Amount
		}
		if enough != s.Enough(m) {
			t.Fatalf("%s of %+v: enough %t", m, s, enough)
		}
		if enough {
			bySize[m.Len()] = append(bySize[m.Len()], m)
			fewest = min(fewest, m.Len())
			if narrowest == 0 || m.NarrowerThan(narrowest) {
				narrowest = m
			}
		}
	}
	if got := s.Fewest(); got != fewest {
		t.Fatalf("%+v: got %d nodes, want %d", s, got, fewest)
	}
	for size := range s.Universe.Len() + 2 {
		slices.Sort(bySize[size])
		got := slices.Collect(s.OfSize(size))
		if s.Distances == nil && !slices.Equal(got, bySize[size]) {
			t.Fatalf("%d of %+v: got %v, want %v", size, s, got, bySize[size])
		}
		if s.Distances != nil && last(got) != nearest(*s.Distances, bySize[size]) {
			t.Fatalf("%d of %+v: got %v, want the nearest of %v", size, s, got, bySize[size])
		}
	}
	s.Distances = nil
	if got, ok := s.Narrowest(); got != narrowest || ok != (narrowest != 0) {
		t.Fatalf("%+v: got %s, %t, want %s", s, got, ok, narrowest)
	}
}

func last(masks []Mask) Mask {
	if len(masks) == 0 {
		return 0
	}
	return masks[len(masks)-1]
}

// nearest is the first of ascending masks that has the smallest sum of distances.
func nearest(d Distances, masks []Mask) (best Mask) {
	for _, m := range masks {
		if best == 0 || d.Sum(m) < d.Sum(best) {
			best = m
		}
	}
	return best
}

// TestSearchIsCut: a search that reaches its limit reports that, and what it returns
// until then is true.
func TestSearchIsCut(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	s := &Search{Universe: ^Mask(0), Limit: 1000}
	for range 3 {
		n := Need{Weights: new(Weights)}
		for id := range n.Weights {
			n.Weights[id] = 1<<30 + rng.Uint64N(1<<30)
		}
		n.Amount = n.Weights.Sum(s.Universe) / 2
		s.Needs = append(s.Needs, n)
	}
	fewest := s.Fewest()
	if !s.Cut() || fewest < 20 || fewest > 32 {
		t.Errorf("%d nodes after %d steps", fewest, s.Steps)
	}
	if got, ok := s.Narrowest(); !ok || !s.Enough(got) || got.Len() < fewest {
		t.Errorf("%s, %t; %d nodes are necessary", got, ok, fewest)
	}
}
