package ordered

import (
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// sound fails unless the keys ascend, the sizes are right and the tree is in balance.
func sound(t *rapid.T, n *node[int, int]) (size int) {
	if n == nil {
		return 0
	}
	l, r := sound(t, n.left), sound(t, n.right)
	if n.size != l+r+1 {
		t.Fatalf("key %d says %d nodes, there are %d", n.key, n.size, l+r+1)
	}
	if l+r > 1 && (l > heavy*r || r > heavy*l) {
		t.Fatalf("key %d has %d nodes to the left and %d to the right", n.key, l, r)
	}
	return n.size
}

// change draws keys to set and to delete, and does so to the map and to its model.
func change(t *rapid.T, m Map[int, int], model map[int]int, most int) Map[int, int] {
	for range rapid.IntRange(0, most).Draw(t, "steps") {
		key, value := rapid.IntRange(0, 60).Draw(t, "key"), rapid.IntRange(0, 3).Draw(t, "value")
		if rapid.Bool().Draw(t, "delete") {
			m = m.Delete(key)
			delete(model, key)
		} else {
			m = m.Set(key, value)
			model[key] = value
		}
	}
	return m
}

// TestMapIsAMap: whatever is set and deleted, the map is what a map of Go's would be,
// in order, and in balance; the map before stays as it was.
func TestMapIsAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		model := map[int]int{}
		before := change(t, Map[int, int]{}, model, 80)
		was := maps.Clone(model)
		m := change(t, before, model, 80)
		sound(t, m.root)
		for m, model := range map[*Map[int, int]]map[int]int{&m: model, &before: was} {
			if got := maps.Collect(m.All()); !maps.Equal(got, model) || m.Len() != len(model) {
				t.Fatalf("%v of %d keys, want %v", got, m.Len(), model)
			}
		}
		for key := range 61 {
			got, ok := m.Get(key)
			if want, here := model[key]; ok != here || got != want {
				t.Fatalf("key %d: %d %v, want %d %v", key, got, ok, want, here)
			}
		}
		keys := slices.Sorted(maps.Keys(model))
		var forward, backward, values []int
		for key := range m.All() {
			forward = append(forward, key)
		}
		for key := range m.Backward() {
			backward = append(backward, key)
		}
		slices.Reverse(backward)
		for _, key := range keys {
			values = append(values, model[key])
		}
		if !slices.Equal(forward, keys) || !slices.Equal(backward, keys) || !slices.Equal(slices.Collect(m.Values()), values) {
			t.Fatalf("keys %v, backward %v, want %v", forward, backward, keys)
		}
		start, stop := rapid.IntRange(-1, 62).Draw(t, "start"), rapid.IntRange(0, 60).Draw(t, "stop")
		var some, want []int
		for key := range m.From(start) {
			if some = append(some, key); key >= stop {
				break
			}
		}
		for _, key := range keys {
			if key >= start {
				if want = append(want, key); key >= stop {
					break
				}
			}
		}
		if !slices.Equal(some, want) {
			t.Fatalf("from %d to %d: %v, want %v", start, stop, some, want)
		}
		some, want = nil, nil
		for key := range m.Before(start) {
			if some = append(some, key); key <= stop {
				break
			}
		}
		for _, key := range slices.Backward(keys) {
			if key < start {
				if want = append(want, key); key <= stop {
					break
				}
			}
		}
		if !slices.Equal(some, want) {
			t.Fatalf("before %d down to %d: %v, want %v", start, stop, some, want)
		}
	})
}

// TestDiff: what two maps differ in, in order, and nothing but keys that stayed beside
// it; a map that was not changed differs in nothing.
func TestDiff(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		was := map[int]int{}
		old := change(t, Map[int, int]{}, was, 80)
		is := maps.Clone(was)
		new := change(t, old, is, 80)
		if rapid.Bool().Draw(t, "apart") { // without anything in common
			new = Map[int, int]{}
			for key, value := range is {
				new = new.Set(key, value)
			}
		}
		got := maps.Clone(was)
		last := math.MinInt
		for c := range Diff(old, new) {
			if c.Key <= last {
				t.Fatalf("%d after %d", c.Key, last)
			}
			last = c.Key
			before, was := was[c.Key]
			after, is := is[c.Key]
			if c != (Change[int, int]{c.Key, before, after, was, is}) {
				t.Fatalf("%+v, but it was %d %v and is %d %v", c, before, was, after, is)
			}
			if delete(got, c.Key); c.Is {
				got[c.Key] = c.New
			}
		}
		if !maps.Equal(got, is) {
			t.Fatalf("the changes lead to %v, want %v", got, is)
		}
		for c := range Diff(new, new) {
			t.Fatalf("a map differs from itself in %+v", c)
		}
		for range Diff(old, new) {
			break
		}
	})
}

// TestDiffCostsTheChange: of a large map a change of few keys is found without a look
// at the others: all that is looked at is yielded or skipped as a whole.
func TestDiffCostsTheChange(t *testing.T) {
	t.Parallel()
	var old Map[int, int]
	for i := range 100_000 {
		old = old.Set(i*7919%100_003, i)
	}
	new := old.Set(5, -1).Set(50_000, -1).Delete(99_999).Set(100_010, -1).Delete(3)
	seen := 0
	for range Diff(old, new) {
		seen++
	}
	if seen < 5 || seen > 100 {
		t.Errorf("%d keys of %d for 5 changes", seen, old.Len())
	}
}

func TestSame(t *testing.T) {
	t.Parallel()
	m := Map[string, int]{}.Set("a", 1)
	if !m.Same(m.Delete("b")) || m.Same(m.Set("a", 1)) || m.Same(m.Delete("a")) {
		t.Error("deleting what is not there changes the map, or setting a key does not")
	}
}
