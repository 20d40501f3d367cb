package numa

import (
	"math/bits"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestSubsets(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		universe string
		subsets  string // lists, separated by blanks
	}{
		{"", ""},
		{"5", "5"},
		{"0,8", "0 8 0,8"},
		{"0-2", "0 1 2 0-1 0,2 1-2 0-2"},
		{"0-3", "0 1 2 3 0-1 0,2 0,3 1-2 1,3 2-3 0-2 0-1,3 0,2-3 1-3 0-3"},
	} {
		var got []string
		for m := range Subsets(mustParse(t, c.universe)) {
			got = append(got, m.String())
		}
		if text := strings.Join(got, " "); text != c.subsets {
			t.Errorf("subsets of {%s} are %s, expected %s", c.universe, text, c.subsets)
		}
	}
}

func TestSubsetsOfSize(t *testing.T) {
	t.Parallel()
	full := ^Mask(0)
	for _, c := range []struct {
		universe    Mask
		k, count    int
		first, last string
	}{
		{Of(1, 3, 5), 0, 0, "", ""},
		{Of(1, 3, 5), -1, 0, "", ""},
		{Of(1, 3, 5), 4, 0, "", ""},
		{Of(1, 3, 5), 3, 1, "1,3,5", "1,3,5"},
		{full, 1, 64, "0", "63"},
		{full, 2, 2016, "0-1", "62-63"},
		{full, 3, 41664, "0-2", "61-63"},
		{full, 63, 64, "0-62", "1-63"},
		{full, 64, 1, "0-63", "0-63"},
	} {
		all := slices.Collect(SubsetsOfSize(c.universe, c.k))
		if len(all) != c.count {
			t.Errorf("{%s} has %d subsets of %d nodes, expected %d", c.universe, len(all), c.k, c.count)
			continue
		}
		if c.count > 0 && (all[0].String() != c.first || all[len(all)-1].String() != c.last) {
			t.Errorf("subsets of %d nodes go from {%s} to {%s}, expected {%s} to {%s}", c.k, all[0], all[len(all)-1], c.first, c.last)
		}
	}
}

// TestSubsetsMatchModel compares with every integer below 2^n, spread over the
// universe and sorted.
func TestSubsetsMatchModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		universe := Of(rapid.SliceOfN(rapid.IntRange(0, MaxNodes-1), 0, 9).Draw(t, "universe")...)
		ids := universe.IDs()
		var want []Mask
		for places := uint(1); places < 1<<len(ids); places++ {
			var m Mask
			for rest := places; rest != 0; rest &= rest - 1 {
				m = m.With(ids[bits.TrailingZeros(rest)])
			}
			want = append(want, m)
		}
		slices.SortFunc(want, Mask.CompareEnumeration)
		if got := slices.Collect(Subsets(universe)); !slices.Equal(got, want) {
			t.Fatalf("subsets of {%s} are %v, expected %v", universe, got, want)
		}
	})
}

// A machine of 64 nodes has 2^64-1 subsets: a caller that takes the first few must not
// pay for the rest.
func TestSubsetsStop(t *testing.T) {
	t.Parallel()
	count := 0
	for range Subsets(^Mask(0)) {
		if count++; count == 100 {
			break
		}
	}
	if count != 100 {
		t.Errorf("took %d subsets, expected 100", count)
	}
}
