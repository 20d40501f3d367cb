package cpuset

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is a set as plain Go; the properties compare with it.
type model map[int]bool

// modelOf gives the model of ids.
func modelOf(ids ...int) model {
	m := model{}
	for _, id := range ids {
		m[id] = true
	}
	return m
}

func (m model) ids() []int { return slices.Sorted(maps.Keys(m)) }

// where returns the ids of m that keep selects.
func (m model) where(keep func(id int) bool) model {
	r := model{}
	for id := range m {
		if keep(id) {
			r[id] = true
		}
	}
	return r
}

func (m model) union(o model) model {
	r := maps.Clone(m)
	maps.Copy(r, o)
	return r
}

// anyID prefers ids next to the borders of words and of the head.
func anyID() *rapid.Generator[int] {
	return rapid.OneOf(
		rapid.IntRange(0, 15),
		rapid.SampledFrom([]int{62, 63, 64, 65, 127, 128, 254, 255, 256, 257, 319, 320, 383, 384, 8127, 8128, 8190, 8191}),
		rapid.IntRange(0, MaxCPUs-1),
	)
}

// anySet gives a set and its model. The runs make sets overlap often.
func anySet() *rapid.Generator[model] {
	return rapid.Custom(func(t *rapid.T) model {
		m := model{}
		for _, first := range rapid.SliceOfN(anyID(), 0, 12).Draw(t, "firsts") {
			length := rapid.IntRange(1, 80).Draw(t, "length")
			for id := first; id < min(first+length, MaxCPUs); id++ {
				m[id] = true
			}
		}
		return m
	})
}

func drawSet(t *rapid.T, label string) (Set, model) {
	m := anySet().Draw(t, label)
	return Of(m.ids()...), m
}

// mustEqual compares a set with a model by all methods of a
// single set.
func mustEqual(t *rapid.T, what string, s Set, m model) {
	t.Helper()
	ids := m.ids()
	if !slices.Equal(s.IDs(), ids) || !slices.Equal(slices.Collect(s.All()), ids) {
		t.Fatalf("%s = %v, expected %v", what, s.IDs(), ids)
	}
	if s != Of(ids...) {
		t.Fatalf("%s is not == the set of the same ids", what)
	}
	if s.Len() != len(ids) || s.IsEmpty() != (len(ids) == 0) {
		t.Fatalf("%s: Len %d, IsEmpty %v, expected %d ids", what, s.Len(), s.IsEmpty(), len(ids))
	}
	smallest, hasMin := s.Min()
	largest, hasMax := s.Max()
	if hasMin != (len(ids) > 0) || hasMax != hasMin {
		t.Fatalf("%s: Min known %v, Max known %v, expected %v", what, hasMin, hasMax, len(ids) > 0)
	}
	if hasMin && (smallest != ids[0] || largest != ids[len(ids)-1]) {
		t.Fatalf("%s: Min %d, Max %d, expected %d, %d", what, smallest, largest, ids[0], ids[len(ids)-1])
	}
}

func TestOperationsMatchModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, modelA := drawSet(t, "a")
		b, modelB := drawSet(t, "b")
		c, modelC := drawSet(t, "c")
		inB := func(id int) bool { return modelB[id] }
		notInB := func(id int) bool { return !modelB[id] }
		common := modelA.where(inB)

		mustEqual(t, "a", a, modelA)
		mustEqual(t, "a union b", a.Union(b), modelA.union(modelB))
		mustEqual(t, "a intersect b", a.Intersect(b), common)
		mustEqual(t, "a minus b", a.Minus(b), modelA.where(notInB))
		mustEqual(t, "union of a, b, c", UnionOf(a, b, c), modelA.union(modelB).union(modelC))
		if got := a.IntersectLen(b); got != len(common) {
			t.Fatalf("IntersectLen = %d, expected %d", got, len(common))
		}
		if got := a.Overlaps(b); got != (len(common) > 0) {
			t.Fatalf("Overlaps = %v with %d ids in common", got, len(common))
		}
		if got := a.IsSubsetOf(b); got != (len(common) == len(modelA)) {
			t.Fatalf("IsSubsetOf = %v with %d of %d ids in common", got, len(common), len(modelA))
		}
		if !a.Intersect(b).IsSubsetOf(a) || !a.IsSubsetOf(a.Union(b)) {
			t.Fatal("an intersection is no subset, or a union no superset")
		}
		if got := a == b; got != maps.Equal(modelA, modelB) {
			t.Fatalf("a == b is %v", got)
		}
		id := anyID().Draw(t, "id")
		if got := a.Contains(id); got != modelA[id] {
			t.Fatalf("Contains(%d) = %v", id, got)
		}
		n := rapid.IntRange(0, len(modelA)+1).Draw(t, "n")
		mustEqual(t, "lowest n of a", a.Lowest(n), modelOf(modelA.ids()[:min(n, len(modelA))]...))
	})
}

func TestTextMatchesModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s, m := drawSet(t, "s")
		parsed, err := Parse(s.String())
		if err != nil {
			t.Fatal(err)
		}
		mustEqual(t, "the parsed text", parsed, m)
		first, last := anyID().Draw(t, "first"), anyID().Draw(t, "last")
		inRange := model{}
		for id := first; id <= last; id++ {
			inRange[id] = true
		}
		mustEqual(t, "the range", Range(first, last), inRange)
	})
}

func TestIterationStops(t *testing.T) {
	t.Parallel()
	s := Of(1, 70, 300, 8000)
	for stopAt := range s.All() {
		var seen []int
		for id := range s.All() {
			seen = append(seen, id)
			if id == stopAt {
				break
			}
		}
		if last := seen[len(seen)-1]; last != stopAt {
			t.Errorf("iteration went on to %d after a break at %d", last, stopAt)
		}
	}
}

func TestBuilderMatchesModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var b Builder
		m := model{}
		earlier, earlierModel := b.Set(), model{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id := anyID().Draw(t, "id")
				b.Add(id)
				m[id] = true
			},
			"remove": func(t *rapid.T) {
				id := anyID().Draw(t, "id")
				b.Remove(id)
				delete(m, id)
			},
			"add range": func(t *rapid.T) {
				first := anyID().Draw(t, "first")
				last := min(first+rapid.IntRange(-1, 200).Draw(t, "length"), MaxCPUs-1)
				b.AddRange(first, last)
				for id := first; id <= last; id++ {
					m[id] = true
				}
			},
			"add set": func(t *rapid.T) {
				s, other := drawSet(t, "set")
				b.AddSet(s)
				maps.Copy(m, other)
			},
			"keep": func(*rapid.T) { earlier, earlierModel = b.Set(), maps.Clone(m) },
			"": func(t *rapid.T) {
				mustEqual(t, "the builder's set", b.Set(), m)
				mustEqual(t, "the set taken earlier", earlier, earlierModel)
				id := anyID().Draw(t, "asked")
				if b.Contains(id) != m[id] || b.Len() != len(m) {
					t.Fatalf("Contains(%d) = %v, Len = %d, expected %v, %d", id, b.Contains(id), b.Len(), m[id], len(m))
				}
			},
		})
	})
}

// FuzzParse: every text that is accepted comes back from its own text form, and
// the text form is the shortest of its kind.
func FuzzParse(f *testing.F) {
	for _, list := range []string{
		"", "0", "0-3,8,10-11", "255,256", "8191", "8192", "1,0", "0-0", "3-1", "1-2-3", " 1", "1\n", "-1", "+1", ",", "007", "0-8191",
		"all",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		s, err := Parse(list)
		if err != nil {
			if s != (Set{}) {
				t.Fatalf("Parse(%q) gave %q with the error %v", list, s, err)
			}
			return
		}
		text := s.String()
		again, err := Parse(text)
		if err != nil || again != s {
			t.Fatalf("Parse(%q) prints as %q, which parses to %q, %v", list, text, again, err)
		}
		if len(text) > len(list) {
			t.Fatalf("Parse(%q) prints longer than it was: %q", list, text)
		}
		var fromJSON Set
		if err := fromJSON.UnmarshalText([]byte(text)); err != nil || fromJSON != s || Of(s.IDs()...) != s {
			t.Fatalf("%q does not survive its text or its ids", text)
		}
	})
}
