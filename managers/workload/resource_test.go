package workload

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/errdefs"
)

func TestHugePageSize(t *testing.T) {
	t.Parallel()
	for name, want := range map[Resource]int64{
		"hugepages-64Ki":                64 << 10,
		"hugepages-2Mi":                 2 << 20,
		"hugepages-2048Ki":              2 << 20,
		"hugepages-2097152":             2 << 20,
		"hugepages-1Gi":                 1 << 30,
		"hugepages-1024Mi":              1 << 30,
		"hugepages-16Gi":                16 << 30,
		"hugepages-2M":                  2e6,
		"hugepages-7Ei":                 7 << 60,
		"hugepages-9223372036854775807": math.MaxInt64,
		"hugepages-0002Mi":              2 << 20,
	} {
		if got, err := HugePageSize(name); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want)
		}
	}
	for _, name := range []Resource{
		"", "cpu", "memory", "hugepages", "hugepages-", "hugepages-Mi", "hugepages-0", "hugepages-0Mi", "hugepages--2Mi", "hugepages-2mi",
		"hugepages-2m", "hugepages-1.5Gi", "hugepages-2Mi ", "hugepages-2MiMi", "hugepages-8Ei", "hugepages-9223372036854775808",
		"hugepages-99999999999999999999Ki", "Hugepages-2Mi", "hugepages-2\xffMi",
	} {
		if got, err := HugePageSize(name); errdefs.ClassOf(err) != errdefs.Invalid {
			t.Errorf("%q: %d, %v; want an error of class invalid", name, got, err)
		}
	}
}

func TestIsExtended(t *testing.T) {
	t.Parallel()
	domain := strings.Repeat("a.", 121) + "ab" // 244 characters: with "requests." exactly 253
	for name, want := range map[string]bool{
		"example.com/gpu":                 true,
		"nvidia.com/gpu":                  true,
		"a/b":                             true,
		"a-b.c/D_e.f-1":                   true,
		"a.io/" + strings.Repeat("x", 63): true,
		domain + "/x":                     true,
		"x" + domain + "/x":               false,
		"a.io/" + strings.Repeat("x", 64): false,
		"cpu":                             false,
		"foo":                             false,
		"hugepages-2Mi":                   false,
		"kubernetes.io/x":                 false,
		"foo.kubernetes.io/x":             false,
		"requests.foo/x":                  false,
		"hugepages-2mi/x":                 true,
		"a/b/c":                           false,
		"UPPER.io/x":                      false,
		"a.io/":                           false,
		"/x":                              false,
		"a..b/x":                          false,
		"-a/x":                            false,
		"a-/x":                            false,
		"a/-x":                            false,
		"a/x_":                            false,
		"a/x y":                           false,
		"a/\u00e9":                        false,
		"":                                false,
		"/":                               false,
	} {
		if got := Resource(name).IsExtended(); got != want {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestRoundUp(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		r              Resource
		unscaled       int64
		scale          int
		amount, excess int64
	}{
		{Memory, 1500, 3, 2, billion / 2},            // 1500m
		{Memory, 100, 3, 1, 9 * billion / 10},        // 100m
		{Memory, 3, -9, 3e9, 0},                      // 3G
		{Memory, 0, 0, 0, 0},                         //
		{CPU, 0, -99, 0, 0},                          // 0e99
		{Memory, -15, 1, -1, billion / 2},            // -1.5
		{Memory, 1, 12, 1, billion - 1},              // finer than kept: rounded up to a billionth
		{CPU, 2, 0, 2000, 0},                         // 2
		{CPU, 15, 1, 1500, 0},                        // 1.5
		{CPU, 100, 6, 1, 9 * billion / 10},           // 100u
		{CPU, 1500, 6, 2, billion / 2},               // 1500u
		{CPU, 1, 9, 1, billion - 1000},               // 1n
		{CPU, 20005, 4, 2001, billion / 2},           // 2.0005
		{CPU, 19995, 4, 2000, billion / 2},           // 1.9995 counts as two whole CPUs
		{"example.com/gpu", 25, 1, 3, billion / 2},   // 2.5
		{Memory, math.MaxInt64, 0, math.MaxInt64, 0}, //
	} {
		amount, excess, ok := RoundUp(row.r, big.NewInt(row.unscaled), row.scale)
		if !ok || amount != row.amount || excess != row.excess {
			t.Errorf("%s %de-%d: %d, %d, %v; want %d, %d", row.r, row.unscaled, row.scale, amount, excess, ok, row.amount, row.excess)
		}
	}
	for _, row := range []struct {
		r        Resource
		unscaled int64
		scale    int
	}{
		{CPU, math.MaxInt64, 0}, {Memory, math.MaxInt64, -1}, {Memory, 1, 1 << 30}, {Memory, 1, -(1 << 30)}, {Memory, math.MinInt64, -1},
		{Memory, 1, math.MinInt}, {Memory, 1, math.MaxInt},
	} {
		if amount, _, ok := RoundUp(row.r, big.NewInt(row.unscaled), row.scale); ok {
			t.Errorf("%s %de-%d: %d, want a refusal", row.r, row.unscaled, row.scale, amount)
		}
	}
}

func FuzzHugePageSize(f *testing.F) {
	for _, seed := range []string{"hugepages-2Mi", "hugepages-1Gi", "hugepages-", "hugepages-0", "hugepages-9223372036854775807Ei", "cpu"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		size, err := HugePageSize(Resource(name))
		switch {
		case err == nil && size <= 0:
			t.Errorf("%q: size %d", name, size)
		case err == nil && !Resource(name).IsHugePages():
			t.Errorf("%q: has a size without being a huge page resource", name)
		case err != nil && size != 0:
			t.Errorf("%q: size %d beside %v", name, size, err)
		}
	})
}

func FuzzResourceName(f *testing.F) {
	for _, seed := range []string{"example.com/gpu", "cpu", "a/b/c", "kubernetes.io/x", "requests.a/b", "hugepages-2Mi", "\xff/x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		r := Resource(name)
		if !r.IsExtended() {
			return
		}
		if !r.inContainer() || r.PodLevel() || r.overcommits() {
			t.Errorf("%q is extended, yet container may ask: %v, pod level: %v, overcommits: %v", name, r.inContainer(), r.PodLevel(),
				r.overcommits())
		}
		if strings.Count(name, "/") != 1 || len(name) > 253+1+63 || strings.ContainsAny(name, " \t\n\"\\[]") {
			t.Errorf("%q counts as an extended resource", name)
		}
	})
}

// TestQuantitiesAsJSON: amounts are written as any other map.
func TestQuantitiesAsJSON(t *testing.T) {
	t.Parallel()
	names := rapid.OneOf(rapid.StringMatching(`[a-z./_0-9A-Z-]{0,12}`), rapid.String(), rapid.Just("a\xff<>&\u2028"))
	rapid.Check(t, func(t *rapid.T) {
		var q Quantities
		if rapid.Bool().Draw(t, "present") {
			q = Quantities{}
			for _, name := range rapid.SliceOfN(names, 0, 12).Draw(t, "names") {
				q[Resource(name)] = rapid.Int64().Draw(t, "amount")
			}
		}
		type container struct {
			Requests Quantities `json:"requests,omitempty"`
			Limits   Quantities
		}
		type plain struct {
			Requests map[Resource]int64 `json:"requests,omitempty"`
			Limits   map[Resource]int64
		}
		got, err := json.Marshal(container{q, q})
		if err != nil {
			t.Fatal(err)
		}
		want, err := json.Marshal(plain{q, q})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	})
}
