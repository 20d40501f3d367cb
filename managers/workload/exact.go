package workload

import (
	"maps"
	"math"
	"math/big"
)

// Excess is the amount by which rounding to whole numbers has raised amounts, in billionths of the amount's unit, for
// those that were. Kubernetes adds exact quantities and rounds the sum, so two containers that request 1.5 bytes each need 3
// bytes together, not 4. Nil, and an absent key, mean that nothing was rounded, which is so for nearly every pod.
type Excess struct {
	Requests Quantities `json:"requests,omitempty"`
	Limits   Quantities `json:"limits,omitempty"`
	// Overhead is used at pod level only.
	Overhead Quantities `json:"overhead,omitempty"`
}

// RoundUp turns the decimal number unscaled * 10^-scale, counted in the units that Kubernetes writes (CPUs, bytes, pieces),
// into an amount and the excess that rounding up put on it. ok is false if the amount does not fit or if scale is beyond any
// that a quantity can have; then the quantity is invalid.
func RoundUp(r Resource, unscaled *big.Int, scale int) (amount, excess int64, ok bool) {
	if unscaled.Sign() == 0 {
		return 0, 0, true
	}
	const finest = 9 // digits kept below the unit
	shift := finest - scale
	if r == CPU {
		shift += 3 // the unit is a thousandth
	}
	if shift < -100 || shift > 100 {
		return 0, 0, false
	}
	billionths := new(big.Int)
	if power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(shift, -shift))), nil); shift >= 0 {
		billionths.Mul(unscaled, power)
	} else {
		billionths = ceilDiv(unscaled, power)
	}
	whole := ceilDiv(billionths, big.NewInt(billion))
	if !whole.IsInt64() {
		return 0, 0, false
	}
	rest := new(big.Int).Mul(whole, big.NewInt(billion))
	return whole.Int64(), rest.Sub(rest, billionths).Int64(), true
}

// ceilDiv divides by a positive number and rounds up. DivMod is Euclidean: its remainder is never negative.
func ceilDiv(x, positive *big.Int) *big.Int {
	quotient, rest := new(big.Int).DivMod(x, positive, new(big.Int))
	if rest.Sign() > 0 {
		quotient.Add(quotient, big.NewInt(1))
	}
	return quotient
}

const billion = 1_000_000_000

// Exact is the number Whole - Excess/billion, with 0 <= Excess < billion; so Whole is the number rounded up.
type Exact struct {
	Whole, Excess int64
}

// Plus adds. The whole part stops at the ends of int64.
func (a Exact) Plus(b Exact) Exact {
	s := Exact{Sum(a.Whole, b.Whole), a.Excess + b.Excess}
	if s.Excess >= billion {
		s.Whole, s.Excess = Sum(s.Whole, -1), s.Excess-billion
	}
	return s
}

// Minus subtracts what is not negative. The whole part stops at the ends of int64.
func (a Exact) Minus(b Exact) Exact {
	d := Exact{Sum(a.Whole, -b.Whole), a.Excess - b.Excess}
	if d.Excess < 0 {
		d.Whole, d.Excess = Sum(d.Whole, 1), d.Excess+billion
	}
	return d
}

func (a Exact) above(b Exact) bool {
	return a.Whole > b.Whole || a.Whole == b.Whole && a.Excess < b.Excess
}

// larger gives the larger one of a and b.
func (a Exact) larger(b Exact) Exact {
	if b.above(a) {
		return b
	}
	return a
}

// Sum adds and stops at the ends of int64, so that absurd input cannot turn a huge request into a small one. A caller that adds up
// amounts of pods or of the node does it with this.
func Sum(a, b int64) int64 {
	switch s := a + b; {
	case a > 0 && b > 0 && s < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && s >= 0:
		return math.MinInt64
	default:
		return s
	}
}

// list is one list of amounts with what rounding put on them.
type list struct {
	amounts, excess Quantities
}

func (c *Container) requests() list {
	if c.Excess == nil {
		return list{amounts: c.Requests}
	}
	return list{c.Requests, c.Excess.Requests}
}

func (c *Container) limits() list {
	if c.Excess == nil {
		return list{amounts: c.Limits}
	}
	return list{c.Limits, c.Excess.Limits}
}

// podLevel gives the pod-level lists and the overhead; empty lists where the pod has none.
func (p *Pod) podLevel() (requests, limits, overhead list) {
	overhead.amounts = p.Overhead
	if p.Resources != nil {
		requests.amounts, limits.amounts = p.Resources.Requests, p.Resources.Limits
	}
	if x := p.Excess; x != nil {
		requests.excess, limits.excess, overhead.excess = x.Requests, x.Limits, x.Overhead
	}
	return requests, limits, overhead
}

func (l list) at(r Resource) Exact { return Exact{l.amounts[r], l.excess[r]} }

// copied gives a list that may be written to.
func (l list) copied() list {
	c := list{maps.Clone(l.amounts), maps.Clone(l.excess)}
	if c.amounts == nil {
		c.amounts = Quantities{}
	}
	return c
}

// set writes to a copied list.
func (l *list) set(r Resource, to Exact) {
	l.amounts[r] = to.Whole
	if to.Excess != 0 {
		if l.excess == nil {
			l.excess = Quantities{}
		}
		l.excess[r] = to.Excess
	} else {
		delete(l.excess, r)
	}
}
