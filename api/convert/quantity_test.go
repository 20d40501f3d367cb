package convert

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/workload"
)

func TestQuantity(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name           workload.Resource
		text           string
		amount, excess int64
	}{
		{workload.CPU, "2", 2000, 0},
		{workload.CPU, "007m", 7, 0},
		{workload.CPU, "999999", 999_999_000, 0},
		{workload.CPU, "1000000", 1_000_000_000, 0},
		{workload.CPU, "1Mi", 1 << 20 * 1000, 0},
		{workload.Memory, "999999Ti", 999_999 << 40, 0},
		{workload.Memory, "1000000Ti", 1_000_000 << 40, 0},
		{workload.Memory, "3Ki", 3 << 10, 0},
		{workload.Memory, "5Mi", 5 << 20, 0},
		{workload.Memory, "5M", 5_000_000, 0},
		{"example.com/gpu", "3", 3, 0},
		{workload.CPU, "500m", 500, 0},
		{workload.CPU, "0.1", 100, 0},
		{workload.CPU, "1u", 1, 999_000_000},
		{workload.CPU, "1e3", 1_000_000, 0},
		{workload.CPU, "1E3", 1_000_000, 0},
		{workload.CPU, "1E", 0, -1}, // an exa
		{workload.Memory, "1Gi", 1 << 30, 0},
		{workload.Memory, "1E", 1e18, 0},
		{workload.Memory, "1.5", 2, 500_000_000},
		{workload.Memory, "100m", 1, 900_000_000},
		{workload.Memory, "-1", -1, 0},
		{workload.Memory, "+1", 1, 0},
		{workload.Memory, "1e-3", 1, 999_000_000},
		{workload.Memory, "1e-99", 1, 999_999_999}, // less than a billionth counts as one
		{workload.Memory, "9223372036854775807", 1<<63 - 1, 0},
		{workload.Memory, "9223372036854775808", 0, -1},
		{workload.Memory, "7Ei", 7 << 60, 0},
		{workload.Memory, "8Ei", 1<<63 - 1, 0}, // Kubernetes caps binary amounts
		{workload.Memory, "0e99", 0, 0},
		{workload.Memory, "", 0, -1},
		{workload.Memory, "1 Gi", 0, -1},
		{workload.Memory, "1gi", 0, -1},
		{workload.Memory, "1e", 0, -1},
		{workload.Memory, "0x10", 0, -1},
		{workload.Memory, "NaN", 0, -1},
		{workload.Memory, "1e100", 0, -1},
		// Each of these would keep the parser busy for long, or come out as
		// something else than its text.
		{workload.Memory, "1e-2147483647", 0, -1},
		{workload.Memory, "1E-999999999", 0, -1},
		{workload.Memory, "1e2147483647", 0, -1},
		{workload.Memory, "1e4294967296", 0, -1},
		{workload.Memory, "1e-0000000000000001", 0, -1},
		{workload.Memory, strings.Repeat("9", 64), 0, -1},
		{workload.Memory, strings.Repeat("9", 1<<20), 0, -1},
	} {
		amount, excess, err := quantity(row.name, row.text)
		if row.excess < 0 {
			if err == nil {
				t.Errorf("%s %.40q: %d, want a refusal", row.name, row.text, amount)
			}
			continue
		}
		if err != nil || amount != row.amount || excess != row.excess {
			t.Errorf("%s %.40q: %d less %d, %v; want %d less %d", row.name, row.text, amount, excess, err, row.amount, row.excess)
		}
	}
}

// exact computes what a text means, without the parser: in the units of the
// resource, rounded up to billionths of a CPU or byte.
func exact(r workload.Resource, mantissa int64, decimals int, suffix string) *big.Rat {
	x := new(big.Rat).SetFrac(big.NewInt(mantissa), power(10, decimals))
	for i, s := range []string{"Ki", "Mi", "Gi"} {
		if s == suffix {
			x.Mul(x, new(big.Rat).SetInt(power(1024, i+1)))
		}
	}
	for s, exponent := range map[string]int{"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "e2": 2, "e-2": -2, "E5": 5} {
		if s != suffix {
			continue
		}
		if exponent < 0 {
			x.Quo(x, new(big.Rat).SetInt(power(10, -exponent)))
		} else {
			x.Mul(x, new(big.Rat).SetInt(power(10, exponent)))
		}
	}
	billionths := ceil(x.Mul(x, new(big.Rat).SetInt(power(10, 9))))
	x.SetFrac(billionths, power(10, 9))
	if r == workload.CPU {
		x.Mul(x, big.NewRat(1000, 1))
	}
	return x
}

func power(base int64, n int) *big.Int {
	return new(big.Int).Exp(big.NewInt(base), big.NewInt(int64(n)), nil)
}

func ceil(x *big.Rat) *big.Int {
	q, rest := new(big.Int).DivMod(x.Num(), x.Denom(), new(big.Int))
	if rest.Sign() > 0 {
		q.Add(q, big.NewInt(1))
	}
	return q
}

func TestQuantityProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom([]workload.Resource{workload.CPU, workload.Memory}).Draw(t, "resource")
		mantissa := rapid.Int64Range(0, 1_000_000).Draw(t, "mantissa")
		decimals := rapid.IntRange(0, 12).Draw(t, "decimals")
		suffix := rapid.SampledFrom([]string{"", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "e2", "e-2", "E5"}).Draw(t, "suffix")
		text := fmt.Sprintf("%0*d", decimals+1, mantissa)
		if decimals > 0 {
			text = text[:len(text)-decimals] + "." + text[len(text)-decimals:]
		}
		text += suffix
		amount, excess, err := quantity(r, text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		got := new(big.Rat).Sub(new(big.Rat).SetInt64(amount), big.NewRat(excess, 1_000_000_000))
		if want := exact(r, mantissa, decimals, suffix); got.Cmp(want) != 0 {
			t.Fatalf("%s of %s is %s, want %s", text, r, got.RatString(), want.RatString())
		}
	})
}

func FuzzQuantity(f *testing.F) {
	for _, text := range []string{"2", "500m", "1.5Gi", "1e-2147483647", "1e4294967296", "9E", "-0.0", "++1", "1e5e5", "é"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, r := range []workload.Resource{workload.CPU, workload.Memory} {
			amount, excess, err := quantity(r, text)
			if err == nil && (excess < 0 || excess >= 1_000_000_000) {
				t.Errorf("%q of %s: %d with an excess of %d", text, r, amount, excess)
			}
			if err != nil && len(err.Error()) > 400 {
				t.Errorf("%q: an error of %d bytes", text, len(err.Error()))
			}
		}
	})
}
