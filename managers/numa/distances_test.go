package numa

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// fourNodes: two pairs that are near each other, {0,1} and {2,3}.
var fourNodes = map[int][]int{
	0: {10, 11, 12, 12},
	1: {11, 10, 12, 12},
	2: {12, 12, 10, 11},
	3: {12, 12, 11, 10},
}

func TestDistances(t *testing.T) {
	t.Parallel()
	d, err := FromLists([]int{0, 1, 2, 3}, fourNodes)
	if err != nil {
		t.Fatal(err)
	}
	if d.Nodes() != Of(0, 1, 2, 3) {
		t.Errorf("Nodes() = {%s}, expected 0-3", d.Nodes())
	}
	for list, want := range map[string]int64{"": 0, "0": 10, "0-1": 42, "0,2": 44, "2-3": 42, "0-2": 30 + 2*(11+12+12),
		"0-3": 40 + 44 + 96} {
		m := mustParse(t, list)
		if got := d.Sum(m); got != want || !d.Has(m) {
			t.Errorf("Sum of {%s} = %d, known %v; expected %d", m, got, d.Has(m), want)
		}
	}
	for _, m := range []Mask{Of(4), Of(0, 63)} {
		if d.Has(m) {
			t.Errorf("Has {%s}, expected only 0-3", m)
		}
	}
}

// The reference takes the kernel's list by node id, and with gaps between the
// ids reads the wrong number or beyond the end (kubernetes#113781).
func TestFromListsMapsPositionsToIDs(t *testing.T) {
	t.Parallel()
	d, err := FromLists([]int{0, 8, 9}, map[int][]int{0: {10, 20, 30}, 8: {21, 11, 31}, 9: {22, 32, 12}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		from, to, distance int
		known              bool
	}{
		{0, 0, 10, true},
		{0, 8, 20, true},
		{0, 9, 30, true},
		{8, 0, 21, true},
		{8, 8, 11, true},
		{9, 8, 32, true},
		{0, 1, 0, false},
		{1, 0, 0, false},
		{10, 0, 0, false},
		{0, 64, 0, false},
		{-1, 0, 0, false},
		{0, -1, 0, false},
	} {
		if distance, known := d.Between(c.from, c.to); distance != c.distance || known != c.known {
			t.Errorf("Between(%d, %d) = %d, %v, expected %d, %v", c.from, c.to, distance, known, c.distance, c.known)
		}
	}
	if got := d.Sum(Of(0, 8)); got != 10+20+21+11 {
		t.Errorf("Sum of {0,8} = %d, expected 62", got)
	}
}

func TestDistancesMayBeIncomplete(t *testing.T) {
	t.Parallel()
	d, err := FromLists([]int{0, 1}, map[int][]int{0: {10, 20}})
	if err != nil {
		t.Fatal(err)
	}
	if !d.Has(Of(0)) || d.Has(Of(1)) || d.Has(Of(0, 1)) || d.Nodes() != Of(0, 1) {
		t.Errorf("without the list of node 1: Has 0 %v, 1 %v, both %v, Nodes {%s}", d.Has(Of(0)), d.Has(Of(1)), d.Has(Of(0, 1)), d.Nodes())
	}
	if got := d.Sum(Of(0, 1)); got != 30 {
		t.Errorf("Sum of what is known = %d, expected 30", got)
	}
	var none Distances
	if _, known := none.Between(0, 0); known || !none.Nodes().IsEmpty() || none.Has(Of(0)) || !none.Has(0) {
		t.Error("the zero value knows a distance")
	}
}

func TestDistancesRefuse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		online  []int
		lists   map[int][]int
		message string
	}{
		{[]int{0, 64}, nil, "node 64 is outside 0..63"},
		{[]int{0, 1}, map[int][]int{0: {10}}, "node 0 has 1 distances, expected one for each of the 2 online nodes"},
		{[]int{0}, map[int][]int{0: {10, 20}}, "node 0 has 2 distances, expected one for each of the 1 online nodes"},
		{[]int{0}, map[int][]int{2: {10}}, "node 2 has distances but is not online (online: 0)"},
		{[]int{0, 1}, map[int][]int{1: {-1, 10}}, "distance -1 from node 1 to node 0 is outside 0..1048576"},
		{[]int{0}, map[int][]int{0: {1<<20 + 1}}, "distance 1048577 from node 0 to node 0 is outside 0..1048576"},
		{[]int{8, 0}, map[int][]int{}, "online nodes [8 0] are not in ascending order"},
		{[]int{0, 0}, map[int][]int{}, "online nodes [0 0] are not in ascending order"},
	} {
		if _, err := FromLists(c.online, c.lists); err == nil || err.Error() != c.message {
			t.Errorf("FromLists(%v, %v) gave the error %v, expected %s", c.online, c.lists, err, c.message)
		}
	}
	for _, c := range []struct {
		rows    map[int]map[int]int
		message string
	}{
		{map[int]map[int]int{64: {0: 10}}, "node 64 is outside 0..63"},
		{map[int]map[int]int{3: {-2: 10}}, "distances of node 3: node -2 is outside 0..63"},
	} {
		if _, err := NewDistances(c.rows); err == nil || err.Error() != c.message {
			t.Errorf("NewDistances(%v) gave the error %v, expected %s", c.rows, err, c.message)
		}
	}
}

func TestDistancesJSON(t *testing.T) {
	t.Parallel()
	d, err := FromLists([]int{0, 8}, map[int][]int{0: {10, 20}, 8: {20, 10}})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(d)
	if want := `{"0":{"0":10,"8":20},"8":{"0":20,"8":10}}`; err != nil || string(text) != want {
		t.Errorf("Marshal gave %s, %v; expected %s", text, err, want)
	}
	for _, bad := range []string{`[]`, `{"0":{"0":-1}}`, `{"64":{}}`, `{"a":{}}`} {
		kept := d
		if err := json.Unmarshal([]byte(bad), &kept); err == nil || kept.Sum(Of(0, 8)) != 60 {
			t.Errorf("Unmarshal(%s) gave %v and changed the table: %v", bad, err, kept)
		}
	}
	// omitzero works only if a table without distances is the zero value again.
	none := d
	if err := json.Unmarshal([]byte("{}"), &none); err != nil || !reflect.ValueOf(none).IsZero() {
		t.Errorf("{} gives %v, %v; expected the zero value", none, err)
	}
	if text, err := json.Marshal(none); err != nil || string(text) != "{}" {
		t.Errorf("the zero value is %s, %v; expected {}", text, err)
	}
}

func TestDistancesMatchModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		id := rapid.IntRange(0, MaxNodes-1)
		row := rapid.MapOfN(id, rapid.IntRange(0, 1<<20), 0, 8)
		rows := rapid.MapOfN(id, row, 0, 8).Draw(t, "rows")
		d, err := NewDistances(rows)
		if err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var again Distances
		if err := json.Unmarshal(text, &again); err != nil || again.Nodes() != d.Nodes() {
			t.Fatalf("%s comes back with nodes {%s}, %v; expected {%s}", text, again.Nodes(), err, d.Nodes())
		}
		for i := range MaxNodes {
			for j := range MaxNodes {
				want, wantKnown := rows[i][j]
				got, known := d.Between(i, j)
				back, backKnown := again.Between(i, j)
				if got != want || known != wantKnown || back != want || backKnown != wantKnown {
					t.Fatalf("from %d to %d: %d, %v, after JSON %d, %v; expected %d, %v", i, j, got, known, back, backKnown, want,
						wantKnown)
				}
			}
		}
		m := anyMask().Draw(t, "m")
		among := map[int]map[int]int{}
		for i := range m.Intersect(d.Nodes()).All() {
			among[i] = map[int]int{}
			for j, distance := range rows[i] {
				if m.Contains(j) {
					among[i][j] = distance
				}
			}
		}
		want, err := NewDistances(among)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.Among(m); !reflect.DeepEqual(got, want) {
			t.Fatalf("among {%s}: %v, expected %v", m, got, want)
		}
		sum, complete := int64(0), true
		for _, i := range m.IDs() {
			for _, j := range m.IDs() {
				distance, known := rows[i][j]
				sum += int64(distance)
				complete = complete && known
			}
		}
		if d.Sum(m) != sum || d.Has(m) != complete {
			t.Fatalf("{%s}: Sum %d, Has %v; expected %d, %v", m, d.Sum(m), d.Has(m), sum, complete)
		}
	})
}

// FuzzDistances: whatever JSON is accepted survives being written and read.
func FuzzDistances(f *testing.F) {
	f.Add(`{"0":{"0":10,"8":20},"8":{"0":20,"8":10}}`)
	f.Add(`{"0":null,"00":{"1":2}}`)
	f.Add(`null`)
	f.Fuzz(func(t *testing.T, text string) {
		var d Distances
		if d.UnmarshalJSON([]byte(text)) != nil {
			return
		}
		first, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var again Distances
		if err := json.Unmarshal(first, &again); err != nil {
			t.Fatal(err)
		}
		second, err := json.Marshal(again)
		if err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s is written as %s, then as %s, %v", text, first, second, err)
		}
	})
}
