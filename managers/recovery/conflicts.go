package recovery

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// resolveConflicts resolves contradictions: living pods keep their claims. Each round removes a
// claim, so the rounds end.
func (r *recovery) resolveConflicts() {
	for {
		draft := ledger.NewDraft(r.View)
		p := r.plan()
		p.Apply(draft)
		if !r.resolve(draft.View()) {
			return
		}
	}
}

// resolve takes away what the first finding allows to; false: there is none.
func (r *recovery) resolve(view *ledger.View) bool {
	for _, f := range check.View(view) {
		a, b := r.pods[f.Owner.Pod], r.pods[f.Other.Pod]
		if f.Kind == check.Structural && a != nil && (b == nil || b == a) && a.record != nil {
			a.unfit(f)
			return true
		}
		if f.Kind != check.Structural || a == nil || b == nil || a == b {
			continue
		}
		if r.yields(a, b) {
			a, b = b, a
		}
		// b yields to a.
		if !b.Living {
			b.Case, b.Source, b.Kept = Displaced, "", nil
			b.Text = f.Text
			b.record, b.unknown, b.Waits = nil, nil, false
			return true
		}
		return b.yield(a, f)
	}
	return false
}

// unfit makes a pod with contradicting claims an unknown living pod, for example a union of two
// divisions between its containers. No other pod gets any of them.
func (p *pod) unfit(f check.Finding) {
	p.record = nil
	p.wait(p.Source, p.Kept)
	p.unknown.Digest = "" // so that the agent reports the claims of its containers
	p.Text = "what it holds contradicts itself: " + f.Text
}

// yields reports whether a has the weaker right to what both hold.
func (r *recovery) yields(a, b *pod) bool {
	if a.Living != b.Living {
		return !a.Living
	}
	if a.rank() != b.rank() {
		return a.rank() < b.rank()
	}
	return a.generation() < b.generation()
}

func (p *pod) rank() int {
	return slices.Index([]ledger.ClaimSource{"", ledger.FromKernel, ledger.FromLedger, ledger.FromClaimRecord, ledger.FromBoth}, p.Source)
}

func (p *pod) generation() uint64 {
	switch {
	case p.ledger != nil:
		return p.ledger.ChangedGeneration
	case p.seen.Claims != nil:
		return p.seen.Claims.Generation
	}
	return 0
}

// yield takes from a living pod what another one holds by a better right.
func (p *pod) yield(to *pod, f check.Finding) bool {
	kept := Without(p.Kept, to.Kept)
	if ledger.SameClaims(kept, p.Kept) {
		// The contradiction is not about common claims, so no claim can be removed to resolve it.
		kept = nil
	}
	p.Kept = kept
	p.Text = fmt.Sprintf("it runs with something that pod %s holds by a better right: %s", to.uid, f.Text)
	switch {
	case p.record != nil:
		record := *p.record
		record.Claims = kept
		p.record = &record
	case p.unknown != nil:
		u := *p.unknown
		u.Claims, u.Digest = kept, ""
		p.unknown = &u
	default:
		return false
	}
	return true
}

// Without returns claims without the CPUs and devices that others are about.
func Without(claims, others []ledger.Claim) []ledger.Claim {
	var out []ledger.Claim
	for _, c := range claims {
		for i := range others {
			o := &others[i]
			switch {
			case c.CPUs != nil && o.CPUs != nil:
				c.CPUs = &ledger.CPUs{Set: c.CPUs.Set.Minus(o.CPUs.Set), Use: c.CPUs.Use}
			case c.Devices != nil && o.Devices != nil && c.Resource == o.Resource:
				left := slices.DeleteFunc(slices.Clone(c.Devices.Devices), func(d ledger.Device) bool {
					return slices.Contains(o.Devices.IDs(), d.ID)
				})
				if len(left) < len(c.Devices.Devices) {
					c.Devices = &ledger.Devices{Devices: left}
				}
			}
		}
		if c.CPUs != nil && c.CPUs.Set.IsEmpty() || c.Devices != nil && len(c.Devices.Devices) == 0 {
			continue
		}
		out = append(out, c)
	}
	return out
}
