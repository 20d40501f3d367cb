package numa

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list string
		mask Mask
		text string
	}{
		{"", 0, ""},
		{"0", 1, "0"},
		{"1,0", 0b11, "0-1"},
		{"0,8", 0x101, "0,8"},
		{"4,0-1,1", 0b10011, "0-1,4"},
		{"63", 1 << 63, "63"},
		{"0-63", ^Mask(0), "0-63"},
	} {
		m, err := Parse(c.list)
		if err != nil || m != c.mask || m.String() != c.text {
			t.Errorf("Parse(%q) gave %#x, text %q, %v; expected %#x, %q", c.list, uint64(m), m, err, uint64(c.mask), c.text)
		}
		if fromIDs, err := FromIDs(m.IDs()); err != nil || fromIDs != m || Of(m.IDs()...) != m {
			t.Errorf("the ids %v of %q make another mask: %q, %v", m.IDs(), c.list, fromIDs, err)
		}
	}
}

// The format itself is tested where it is read, in idlist.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ list, message string }{
		{"0,64", `node list "0,64": node 64 is outside 0..63`},
		{"0-1023", `node list "0-1023": node 1023 is outside 0..63`},
		{"0-1\n", `node list "0-1\n": expected a node number, found "1\n"`},
		{strings.Repeat("0,", 1<<20), `node list of 2097152 bytes is longer than 65536`},
	} {
		m, err := Parse(c.list)
		if err == nil || err.Error() != c.message || m != 0 {
			t.Errorf("Parse(%.20q) gave %q, %v; expected the empty set and the error %s", c.list, m, err, c.message)
		}
	}
}

func TestIDsOutsideTheLimit(t *testing.T) {
	t.Parallel()
	for id, message := range map[int]string{
		-1: "node -1 is outside 0..63", 64: "node 64 is outside 0..63", math.MaxInt32: "node 2147483647 is outside 0..63",
	} {
		if m, err := FromIDs([]int{3, id}); err == nil || err.Error() != message || m != 0 {
			t.Errorf("FromIDs with %d gave %q, %v; expected the error %s", id, m, err, message)
		}
		if !panics(func() { Of(3, id) }) || !panics(func() { Mask(0).With(id) }) {
			t.Errorf("Of or With accepts node %d", id)
		}
		full := ^Mask(0)
		if full.Contains(id) || full.Without(id) != full {
			t.Errorf("the full set contains node %d, or lost something without it", id)
		}
	}
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

// TestLess is the table of the reference's plain order of integers.
func TestLess(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		less bool
	}{
		{"", "", false},
		{"", "0", true},
		{"0", "0", false},
		{"0", "1", true},
		{"1", "0", false},
		{"0-1", "2", true},
		{"2", "0-1", false},
		{"0-1", "0,2", true},
		{"1-2", "0,3", true},
		{"0-62", "63", true},
		{"63", "0-62", false},
	} {
		a, b := mustParse(t, c.a), mustParse(t, c.b)
		if got := a.Less(b); got != c.less {
			t.Errorf("{%s} less than {%s}: %v, expected %v", a, b, got, c.less)
		}
	}
}

// TestNarrowerThan is the table of the reference's preference: fewer nodes,
// then less.
func TestNarrowerThan(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b     string
		narrower bool
	}{
		{"", "0", true},
		{"0", "", false},
		{"0", "0", false},
		{"0", "1", true},
		{"1", "0", false},
		{"0", "0-1", true},
		{"0-1", "0", false},
		{"63", "0-1", true},
		{"0-1", "63", false},
		{"0-1", "0-2", true},
		{"0-1", "0,2", true},
		{"1-2", "0,3", true},
		{"0,3", "1-2", false},
		{"62-63", "0-2", true},
		{"0-63", "0-62", false},
	} {
		a, b := mustParse(t, c.a), mustParse(t, c.b)
		if got := a.NarrowerThan(b); got != c.narrower {
			t.Errorf("{%s} narrower than {%s}: %v, expected %v", a, b, got, c.narrower)
		}
	}
}

func mustParse(t *testing.T, list string) Mask {
	t.Helper()
	m, err := Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestJSON(t *testing.T) {
	t.Parallel()
	type document struct {
		Mask  Mask         `json:"mask"`
		Empty Mask         `json:"empty"`
		Keyed map[Mask]int `json:"keyed"`
	}
	in := document{Mask: Of(0, 1, 8), Keyed: map[Mask]int{Of(2, 3): 7, 0: 8}}
	text, err := json.Marshal(in)
	if want := `{"mask":"0-1,8","empty":"","keyed":{"":8,"2-3":7}}`; err != nil || string(text) != want {
		t.Fatalf("Marshal gave %s, %v; expected %s", text, err, want)
	}
	var out document
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if out.Mask != in.Mask || out.Empty != in.Empty || !maps.Equal(out.Keyed, in.Keyed) {
		t.Errorf("Unmarshal gave %v, expected %v", out, in)
	}
	kept := Of(5)
	if err := json.Unmarshal([]byte(`"64"`), &kept); err == nil || kept != Of(5) {
		t.Errorf("after a refused text the mask is %q, error %v; expected 5 and an error", kept, err)
	}
}

func anyMask() *rapid.Generator[Mask] {
	return rapid.Map(rapid.SliceOfN(rapid.IntRange(0, MaxNodes-1), 0, 12), func(ids []int) Mask { return Of(ids...) })
}

func TestOperationsMatchModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyMask().Draw(t, "a"), anyMask().Draw(t, "b")
		id := rapid.IntRange(0, MaxNodes-1).Draw(t, "id")
		// keep gives the ids that an operation is expected to leave.
		keep := func(wanted func(id int) bool) []int {
			ids := []int{}
			for id := range MaxNodes {
				if wanted(id) {
					ids = append(ids, id)
				}
			}
			return ids
		}
		inA := func(id int) bool { return slices.Contains(a.IDs(), id) }
		inB := func(id int) bool { return slices.Contains(b.IDs(), id) }
		common := keep(func(id int) bool { return inA(id) && inB(id) })
		for _, c := range []struct {
			what string
			mask Mask
			ids  []int
		}{
			{"a", a, keep(inA)},
			{"union", a.Union(b), keep(func(id int) bool { return inA(id) || inB(id) })},
			{"intersection", a.Intersect(b), common},
			{"difference", a.Minus(b), keep(func(id int) bool { return inA(id) && !inB(id) })},
			{"with", a.With(id), keep(func(other int) bool { return inA(other) || other == id })},
			{"without", a.Without(id), keep(func(other int) bool { return inA(other) && other != id })},
		} {
			if !slices.Equal(c.mask.IDs(), c.ids) || c.mask.Len() != len(c.ids) || c.mask.IsEmpty() != (len(c.ids) == 0) {
				t.Fatalf("%s of {%s} and {%s}, %d = {%s}, expected %v", c.what, a, b, id, c.mask, c.ids)
			}
			lowest, known := c.mask.Lowest()
			if known != (len(c.ids) > 0) || known && lowest != c.ids[0] {
				t.Fatalf("lowest of {%s} = %d, %v", c.mask, lowest, known)
			}
		}
		if a.Contains(id) != inA(id) || a.Overlaps(b) != (len(common) > 0) || a.IsSubsetOf(b) != (len(common) == a.Len()) {
			t.Fatalf("{%s} and {%s}: Contains(%d) %v, Overlaps %v, IsSubsetOf %v", a, b, id, a.Contains(id), a.Overlaps(b), a.IsSubsetOf(b))
		}
		if parsed, err := Parse(a.String()); err != nil || parsed != a {
			t.Fatalf("{%s} parses back to {%s}, %v", a, parsed, err)
		}
	})
}

func TestOrders(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := anyMask().Draw(t, "a"), anyMask().Draw(t, "b"), anyMask().Draw(t, "c")
		if a != b && a.NarrowerThan(b) == b.NarrowerThan(a) || a.NarrowerThan(a) {
			t.Fatalf("narrower does not order {%s} and {%s}", a, b)
		}
		if a.NarrowerThan(b) && b.NarrowerThan(c) && !a.NarrowerThan(c) {
			t.Fatalf("narrower is not transitive over {%s}, {%s}, {%s}", a, b, c)
		}
		want := slices.Compare(a.IDs(), b.IDs())
		if a.Len() != b.Len() {
			want = a.Len() - b.Len()
		}
		if got := a.CompareEnumeration(b); got*want < 0 || (got == 0) != (want == 0) {
			t.Fatalf("CompareEnumeration of {%s} and {%s} = %d, expected the sign of %d", a, b, got, want)
		}
	})
}

// FuzzParse: every text that is accepted comes back from its own text form, and
// the text form is the shortest of its kind.
func FuzzParse(f *testing.F) {
	for _, list := range []string{"", "0", "0-1,4", "63", "64", "1,0", "0-0", "3-1", "1-2-3", " 1", "1\n", "-1", "+1", ",", "007", "0-63"} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		m, err := Parse(list)
		if err != nil {
			if m != 0 {
				t.Fatalf("Parse(%q) gave %q with the error %v", list, m, err)
			}
			return
		}
		text := m.String()
		again, err := Parse(text)
		if err != nil || again != m {
			t.Fatalf("Parse(%q) prints as %q, which parses to %q, %v", list, text, again, err)
		}
		if len(text) > len(list) {
			t.Fatalf("Parse(%q) prints longer than it was: %q", list, text)
		}
		if fromIDs, err := FromIDs(m.IDs()); err != nil || fromIDs != m {
			t.Fatalf("%q does not survive its ids: %q, %v", text, fromIDs, err)
		}
	})
}

func TestCommas(t *testing.T) {
	t.Parallel()
	for mask, want := range map[Mask]string{0: "", Of(0): "0", Of(3, 4): "3,4", Of(0, 1, 2, 63): "0,1,2,63"} {
		if got := mask.Commas(); got != want {
			t.Errorf("%s: %q, want %q", mask, got, want)
		}
	}
}
