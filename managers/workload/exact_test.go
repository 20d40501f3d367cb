package workload

import (
	"math"
	"math/big"
	"testing"

	"pgregory.net/rapid"
)

// TestExactAddsLikeFractions: sums and differences are those of the fractions that the numbers are.
func TestExactAddsLikeFractions(t *testing.T) {
	t.Parallel()
	number := rapid.Custom(func(t *rapid.T) Exact {
		return Exact{
			Whole:  rapid.Int64Range(0, 1<<60).Draw(t, "whole"),
			Excess: rapid.OneOf(rapid.Just[int64](0), rapid.Int64Range(0, billion-1)).Draw(t, "excess"),
		}
	})
	fraction := func(x Exact) *big.Rat {
		return new(big.Rat).Sub(new(big.Rat).SetInt64(x.Whole), big.NewRat(x.Excess, billion))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := number.Draw(t, "a"), number.Draw(t, "b")
		for what, row := range map[string]struct {
			got  Exact
			want *big.Rat
		}{
			"sum":        {a.Plus(b), new(big.Rat).Add(fraction(a), fraction(b))},
			"difference": {a.Minus(b), new(big.Rat).Sub(fraction(a), fraction(b))},
		} {
			if fraction(row.got).Cmp(row.want) != 0 || row.got.Excess < 0 || row.got.Excess >= billion {
				t.Fatalf("%s of %v and %v: %v, want %s", what, a, b, row.got, row.want.FloatString(9))
			}
		}
	})
}

// TestExactStopsAtTheEnds: also where fractions carry into a whole part that has stopped.
func TestExactStopsAtTheEnds(t *testing.T) {
	t.Parallel()
	most, least, half := Exact{Whole: math.MaxInt64}, Exact{Whole: math.MinInt64, Excess: billion / 2}, Exact{Excess: billion / 2}
	for what, row := range map[string]struct{ got, want int64 }{
		"least and less":      {least.Plus(Exact{Whole: -1, Excess: billion / 2}).Whole, math.MinInt64},
		"least and a half":    {least.Plus(half).Whole, math.MinInt64},
		"most and more":       {most.Plus(Exact{Whole: 1, Excess: billion / 2}).Whole, math.MaxInt64},
		"least without more":  {least.Minus(most).Whole, math.MinInt64},
		"nothing without all": {Exact{}.Minus(most).Whole, -math.MaxInt64},
		"most without a half": {most.Minus(half).Whole, math.MaxInt64},
	} {
		if row.got != row.want {
			t.Errorf("%s: %d, want %d", what, row.got, row.want)
		}
	}
}

func TestSumStopsAtTheEnds(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ a, b, want int64 }{
		{1, 2, 3}, {-1, 2, 1}, {math.MaxInt64, 1, math.MaxInt64}, {1, math.MaxInt64, math.MaxInt64},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64}, {math.MinInt64, -1, math.MinInt64},
		{math.MinInt64, math.MinInt64, math.MinInt64}, {math.MaxInt64, math.MinInt64, -1}, {math.MaxInt64, -1, math.MaxInt64 - 1},
	} {
		if got := Sum(row.a, row.b); got != row.want {
			t.Errorf("%d and %d: %d, want %d", row.a, row.b, got, row.want)
		}
	}
}
