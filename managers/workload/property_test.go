package workload

import (
	"encoding/json"
	"maps"
	"math/big"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

var names = []Resource{CPU, Memory, EphemeralStorage, "hugepages-2Mi", "hugepages-1Gi", "example.com/gpu"}

func drawAmounts(t *rapid.T, label string) Quantities {
	return rapid.MapOfN(rapid.SampledFrom(names), rapid.Int64Range(0, 8), 0, 4).Draw(t, label)
}

func drawExcess(t *rapid.T, of Quantities, label string) Quantities {
	var excess Quantities
	for r, amount := range of.Sorted() {
		if amount > 0 && rapid.IntRange(0, 3).Draw(t, label) == 0 {
			if excess == nil {
				excess = Quantities{}
			}
			excess[r] = rapid.Int64Range(1, billion-1).Draw(t, label+" excess")
		}
	}
	return excess
}

// drawPod makes pods in walk order with amounts that may be unequal, fractional, missing or zero.
func drawPod(t *rapid.T) *Pod {
	roles := slices.Concat(
		rapid.SliceOfN(rapid.SampledFrom([]Role{Init, Sidecar}), 0, 4).Draw(t, "init phase"),
		make([]Role, rapid.IntRange(1, 3).Draw(t, "apps")))
	containers := make([]Container, len(roles))
	for i, role := range roles {
		c := reqLim(role, drawAmounts(t, "requests"), drawAmounts(t, "limits"))
		if rapid.IntRange(0, 2).Draw(t, "equal") == 0 {
			c.Requests = c.Limits
		}
		c.Excess = &Excess{Requests: drawExcess(t, c.Requests, "request"), Limits: drawExcess(t, c.Limits, "limit")}
		containers[i] = c
	}
	p := podOf(containers...).withOverhead(drawAmounts(t, "overhead"))
	if rapid.Bool().Draw(t, "pod level") {
		p.withResources(drawAmounts(t, "pod requests"), drawAmounts(t, "pod limits"))
	}
	return p
}

// slow computes one total by its definition, in exact fractions: max(running, init_1, ..., init_n).
func slow(p *Pod, r Resource, of func(*Container) list) *big.Rat {
	value := func(c *Container) *big.Rat {
		x := of(c).at(r)
		return new(big.Rat).Sub(new(big.Rat).SetInt64(x.Whole), big.NewRat(x.Excess, billion))
	}
	running, sidecars, most := new(big.Rat), new(big.Rat), new(big.Rat)
	for _, c := range p.Walk() {
		switch c.Role {
		case App:
			running.Add(running, value(c))
		case Sidecar:
			running.Add(running, value(c))
			sidecars.Add(sidecars, value(c))
		case Init:
			if peak := new(big.Rat).Add(sidecars, value(c)); peak.Cmp(most) > 0 {
				most = peak
			}
		}
	}
	if running.Cmp(most) > 0 {
		return running
	}
	return most
}

func ceil(x *big.Rat) int64 { return ceilDiv(x.Num(), x.Denom()).Int64() }

func TestTotalsProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		sums := totals(p, (*Container).requests, nil).list()
		named := map[Resource]bool{}
		for _, c := range p.Walk() {
			for r := range c.Requests {
				named[r] = true
			}
		}
		if len(named) != len(sums.amounts) {
			t.Fatalf("totals of %v, but containers name %v", sums.amounts, named)
		}
		for r := range named {
			if want := ceil(slow(p, r, (*Container).requests)); sums.amounts[r] != want {
				t.Fatalf("total of %s is %d, want %d", r, sums.amounts[r], want)
			}
		}
	})
}

func TestEffectiveProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		before, _ := json.Marshal(p)
		alone := *p
		alone.Overhead = nil
		for name, effective := range map[string]func(*Pod, Features) Quantities{"requests": EffectiveRequests, "limits": EffectiveLimits} {
			with, without := effective(p, off), effective(&alone, off)
			for r, amount := range without {
				for _, c := range p.Walk() {
					if own := map[string]Quantities{"requests": c.Requests, "limits": c.Limits}[name][r]; own > amount {
						t.Fatalf("%s: %d %s of the pod are less than container %s's %d", name, amount, r, c.Name, own)
					}
				}
				if with[r] < amount || with[r] > amount+p.Overhead[r] {
					t.Fatalf("%s: %d %s become %d with an overhead of %d", name, amount, r, with[r], p.Overhead[r])
				}
			}
		}
		if p.Resources != nil {
			for r, amount := range p.Resources.Requests {
				if got := EffectiveRequests(&alone, on)[r]; r.PodLevel() && got != amount {
					t.Fatalf("pod-level request of %d %s became %d", amount, r, got)
				}
			}
		}
		twice := Quantities{}
		AddRequests(twice, p, on)
		AddRequests(twice, p, on)
		if n := EffectiveRequest(p, on, "example.com/nobody's"); n != 0 {
			t.Fatalf("%d of what nobody asks for", n)
		}
		for r, amount := range EffectiveRequests(p, on) {
			if n := EffectiveRequest(p, on, r); n != amount {
				t.Fatalf("%d %s, alone %d", amount, r, n)
			}
			if twice[r] != 2*amount {
				t.Fatalf("two pods that ask for %d %s ask for %d together", amount, r, twice[r])
			}
		}
		if after, _ := json.Marshal(p); string(after) != string(before) {
			t.Fatalf("the pod was changed:\n%s\n%s", before, after)
		}
	})
}

func TestQoSProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		class := p.QoSClass(off)
		asks := false
		guaranteed := true
		for _, c := range p.Walk() {
			for _, r := range []Resource{CPU, Memory} {
				asks = asks || c.Requests[r] > 0 || c.Limits[r] > 0
			}
			guaranteed = guaranteed && c.Guaranteed()
		}
		if (class == BestEffort) == asks {
			t.Fatalf("class %s, asks for cpu or memory: %v", class, asks)
		}
		if guaranteed && class != Guaranteed {
			t.Fatalf("every container is guaranteed, the pod is %s", class)
		}
		if declared := DeclaredLimits(p, off); class == Guaranteed && (!declared.CPU || !declared.Memory) {
			t.Fatalf("guaranteed, but declared limits are %+v", declared)
		}
		for i := range p.Containers {
			p.Containers[i].Requests["example.com/other"] = 1
		}
		if again := p.QoSClass(off); again != class {
			t.Fatalf("a device makes %s of %s", again, class)
		}
	})
}

func TestDefaultedProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		before, _ := json.Marshal(p)
		got, _ := Defaulted(*p, on)
		if after, _ := json.Marshal(p); string(after) != string(before) {
			t.Fatalf("the given pod was changed:\n%s\n%s", before, after)
		}
		for i, c := range got.Walk() {
			for r := range c.Limits {
				if _, ok := c.Requests[r]; !ok {
					t.Fatalf("container %s has a limit but no request for %s", c.Name, r)
				}
			}
			for r, amount := range p.Containers[i].Requests {
				if c.Requests[r] != amount {
					t.Fatalf("container %s: request %s changed from %d to %d", c.Name, r, amount, c.Requests[r])
				}
			}
		}
		if again, notes := Defaulted(got, on); len(notes) > 0 || !reflect.DeepEqual(again, got) {
			t.Fatalf("a second run changes the pod: %q", notes)
		}
	})
}

// The digest depends on what maps hold, not on how they came to hold it, and survives the ledger's encoding.
func TestDigestProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := drawPod(t)
		want, err := p.Digest()
		if err != nil {
			t.Fatal(err)
		}
		rebuilt := *p
		rebuilt.Containers = slices.Clone(p.Containers)
		for i, c := range p.Walk() {
			fresh := Quantities{}
			for _, r := range rapid.Permutation(slices.Sorted(maps.Keys(c.Requests))).Draw(t, "order") {
				fresh[r] = c.Requests[r]
			}
			rebuilt.Containers[i].Requests = fresh
		}
		if got, err := rebuilt.Digest(); err != nil || got != want {
			t.Fatalf("digest %s, %v after rebuilding a map, was %s", got, err, want)
		}
		text, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		var stored Pod
		if err := json.Unmarshal(text, &stored); err != nil {
			t.Fatal(err)
		}
		if got, err := stored.Digest(); err != nil || got != want {
			t.Fatalf("digest %s, %v after storing, was %s", got, err, want)
		}
	})
}

func TestRoundUpProperty(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.SampledFrom(names).Draw(t, "resource")
		unscaled := rapid.Int64().Draw(t, "unscaled")
		scale := rapid.IntRange(-9, 9).Draw(t, "scale")
		amount, excess, ok := RoundUp(r, big.NewInt(unscaled), scale)
		power := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil))
		want := new(big.Rat).SetInt64(unscaled)
		if scale > 0 {
			want.Quo(want, power)
		} else {
			want.Mul(want, power)
		}
		if r == CPU {
			want.Mul(want, big.NewRat(1000, 1))
		}
		if fits := ceilDiv(want.Num(), want.Denom()).IsInt64(); fits != ok {
			t.Fatalf("fits int64: %v, ok: %v", fits, ok)
		}
		if !ok {
			return
		}
		got := new(big.Rat).Sub(new(big.Rat).SetInt64(amount), big.NewRat(excess, billion))
		if excess < 0 || excess >= billion || got.Cmp(want) != 0 {
			t.Fatalf("%d - %d billionths is %s, want %s", amount, excess, got, want)
		}
	})
}
