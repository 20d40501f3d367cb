package cpuset

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		list string
		ids  []int
		text string
	}{
		{"", []int{}, ""},
		{"0", []int{0}, "0"},
		{"1,0", []int{0, 1}, "0-1"},
		{"0-3,8,2,8-8", []int{0, 1, 2, 3, 8}, "0-3,8"},
		{"63-64", []int{63, 64}, "63-64"},
		{"255-256", []int{255, 256}, "255-256"},
		{"8191,0", []int{0, 8191}, "0,8191"},
		{"319,320,384", []int{319, 320, 384}, "319-320,384"},
	} {
		s, err := Parse(c.list)
		if err != nil || !slices.Equal(s.IDs(), c.ids) || s.String() != c.text {
			t.Errorf("Parse(%q) gave ids %v, text %q, %v; expected %v, %q", c.list, s.IDs(), s, err, c.ids, c.text)
		}
		if s != Of(c.ids...) || s != Collect(slices.Values(c.ids)) {
			t.Errorf("Parse(%q) is not == the set of its ids", c.list)
		}
	}
	everyCPU, err := Parse("0-8191")
	if err != nil || everyCPU != Range(0, MaxCPUs-1) || everyCPU.Len() != MaxCPUs {
		t.Errorf("Parse(0-8191) gave %d ids, %v; expected %d", everyCPU.Len(), err, MaxCPUs)
	}
}

// The format itself is tested where it is read, in idlist.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ list, message string }{
		{"0,8192", `cpu list "0,8192": cpu 8192 is outside 0..8191`},
		{"0-4294967296", `cpu list "0-4294967296": cpu 4294967296 is outside 0..8191`},
		{"0-3\n", `cpu list "0-3\n": expected a cpu number, found "3\n"`},
		{strings.Repeat("0,", 1<<20), `cpu list of 2097152 bytes is longer than 65536`},
	} {
		s, err := Parse(c.list)
		if err == nil || err.Error() != c.message || !s.IsEmpty() {
			t.Errorf("Parse(%.20q) gave %q, %v; expected the empty set and the error %s", c.list, s, err, c.message)
		}
	}
}

func TestRange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		first, last int
		text        string
	}{
		{0, 0, "0"},
		{0, 63, "0-63"},
		{63, 64, "63-64"},
		{1, 254, "1-254"},
		{200, 700, "200-700"},
		{8191, 8191, "8191"},
		{4, 3, ""},
		{9000, -9000, ""},
	} {
		if got := Range(c.first, c.last).String(); got != c.text {
			t.Errorf("Range(%d, %d) = %q, expected %q", c.first, c.last, got, c.text)
		}
	}
}

func TestLowest(t *testing.T) {
	t.Parallel()
	s := Of(3, 5, 100, 300, 8000)
	for n, text := range map[int]string{
		-1: "", 0: "", 1: "3", 2: "3,5", 4: "3,5,100,300", 5: "3,5,100,300,8000", 6: "3,5,100,300,8000",
	} {
		if got := s.Lowest(n).String(); got != text {
			t.Errorf("Lowest(%d) of %s = %q, expected %q", n, s, got, text)
		}
	}
}

func TestEmpty(t *testing.T) {
	t.Parallel()
	var zero Set
	if !zero.IsEmpty() || zero.Len() != 0 || zero.String() != "" {
		t.Errorf("the zero value is %q", zero)
	}
	if ids := zero.IDs(); ids == nil || len(ids) != 0 {
		t.Errorf("IDs() of the empty set = %#v, expected []int{}", ids)
	}
	if _, ok := zero.Min(); ok {
		t.Error("the empty set has a Min")
	}
	if _, ok := zero.Max(); ok {
		t.Error("the empty set has a Max")
	}
	for name, s := range map[string]Set{
		"Of()": Of(), "UnionOf()": UnionOf(), "Minus": Of(1, 300).Minus(Of(1, 300)), "Intersect": Of(300).Intersect(Of(301)),
	} {
		if s != zero {
			t.Errorf("%s is not == the zero value", name)
		}
	}
}

func TestIDsOutsideTheLimit(t *testing.T) {
	t.Parallel()
	for _, id := range []int{-1, -64, -8192, MaxCPUs, MaxCPUs + 64, math.MaxInt, math.MinInt} {
		for name, add := range map[string]func(){
			"Of":           func() { Of(id) },
			"Range first":  func() { Range(id, max(id, 0)) },
			"Range last":   func() { Range(min(id, 0), id) },
			"Collect":      func() { Collect(slices.Values([]int{id})) },
			"Builder.Add":  func() { new(Builder).Add(id) },
			"AddRange low": func() { new(Builder).AddRange(id, math.MaxInt) },
		} {
			if !panics(add) {
				t.Errorf("%s accepts cpu %d", name, id)
			}
		}
		full := Range(0, MaxCPUs-1)
		if full.Contains(id) {
			t.Errorf("the full set contains cpu %d", id)
		}
		var b Builder
		b.AddSet(full)
		b.Remove(id)
		if b.Contains(id) || b.Len() != MaxCPUs {
			t.Errorf("removing cpu %d from the full builder leaves %d ids", id, b.Len())
		}
	}
}

func panics(f func()) (panicked bool) {
	defer func() { panicked = recover() != nil }()
	f()
	return false
}

func TestJSON(t *testing.T) {
	t.Parallel()
	type document struct {
		Set   Set         `json:"set"`
		Empty Set         `json:"empty"`
		Keyed map[Set]int `json:"keyed"`
	}
	in := document{Set: Of(0, 1, 300), Keyed: map[Set]int{Of(2, 3): 7, {}: 8}}
	text, err := json.Marshal(in)
	if want := `{"set":"0-1,300","empty":"","keyed":{"":8,"2-3":7}}`; err != nil || string(text) != want {
		t.Fatalf("Marshal gave %s, %v; expected %s", text, err, want)
	}
	var out document
	if err := json.Unmarshal(text, &out); err != nil {
		t.Fatal(err)
	}
	if out.Set != in.Set || out.Empty != in.Empty || out.Keyed[Of(2, 3)] != 7 || out.Keyed[Set{}] != 8 {
		t.Errorf("Unmarshal gave %v, expected %v", out, in)
	}
	kept := Of(5)
	if err := json.Unmarshal([]byte(`"3-1"`), &kept); err == nil || kept != Of(5) {
		t.Errorf("after a refused text the set is %q, error %v; expected 5 and an error", kept, err)
	}
}

// TestAllocations holds the promise of the package comment. It counts in the
// whole process, so it must not be parallel.
func TestAllocations(t *testing.T) {
	small, small2 := Range(0, 255), Of(0, 17, 255)
	large, large2 := Range(0, MaxCPUs-1), Of(0, 17, 8191)
	var sink Set
	for _, c := range []struct {
		name string
		most float64
		op   func()
	}{
		{"small union", 0, func() { sink = small.Union(small2) }},
		{"small intersection", 0, func() { sink = small.Intersect(small2) }},
		{"small difference", 0, func() { sink = small.Minus(small2) }},
		{"small parse", 0, func() { sink, _ = Parse("0-3,8,255") }},
		{"small of mixed", 0, func() { sink = large.Intersect(small) }},
		{"large union", 1, func() { sink = large.Union(large2) }},
		{"large intersection", 1, func() { sink = large.Intersect(large2) }},
		{"large difference", 1, func() { sink = large.Minus(large2) }},
		{"large questions", 0, func() {
			_ = large.Len() + large.IntersectLen(large2)
			_ = large.Overlaps(large2) && large2.IsSubsetOf(large)
			for range large2.All() {
			}
		}},
	} {
		if got := testing.AllocsPerRun(100, c.op); got > c.most {
			t.Errorf("%s allocates %v times, expected at most %v", c.name, got, c.most)
		}
	}
	_ = sink
}
