package admission

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

const (
	// triedSets bounds the node sets that are looked at for what is missing.
	triedSets = 64
	// shownSets is how many of them a trace tells about: those that lack least.
	shownSets = 4
)

// explain completes the trace of a pod that was rejected for want of resources:
// what was missing, and what would make it fit. It takes many times as long as
// the decision, so no lock is held meanwhile; it looks only at the view that the
// decision was made on.
func (e *Engine) explain(ctx context.Context, c *candidate) {
	if c.failed == nil || errdefs.ClassOf(c.failed.err) != errdefs.Refused {
		return
	}
	refused := &c.trace.Steps[len(c.trace.Steps)-1]
	refused.Container = c.failed.req.Owner().Container
	refused.Shortages = c.missing()
	if !suspect(c.failed.base) {
		c.trace.Suggestions, c.trace.Tried = e.suggest(ctx, c, refused.Shortages)
	}
}

// saveTrace writes the trace of a rejected pod into the ledger. One that cannot be
// written is not worth failing the answer for.
func (e *Engine) saveTrace(ctx context.Context, c *candidate) {
	_, err := e.Ledger.Update(ctx, func(d *ledger.Draft) error { d.PutTrace(c.trace); return nil })
	if err != nil {
		c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "this trace could not be kept: " + err.Error()})
	}
}

// saidBefore tells whether the newest trace of the pod says the same. A deferred pod is
// asked for again and again, and every trace is a commit.
func (e *Engine) saidBefore(c *candidate) bool {
	last, ok := e.Ledger.View().TraceOfPod(c.uid())
	return ok && !last.Admitted && last.Reason == c.trace.Reason && last.Message == c.trace.Message
}

// lacking is a refusal that carries what was missing.
type lacking interface{ Missing() []ledger.Shortage }

// missing says what a refused request lacked: on the whole machine; or else as the
// refusal says; or else on node sets of the smallest size that could serve it on
// an idle machine. It says nothing if such a set lacks nothing: then the request
// fits, but not in the way that the policy wants.
func (c *candidate) missing() []ledger.Shortage {
	machine := c.failed.view.Machine().NodeMask()
	if list := c.bus.Explain(c.failed.view, c.failed.req, machine); len(list) > 0 {
		return list
	}
	var own lacking
	if errors.As(c.failed.err, &own) {
		if list := distinct(own.Missing()); len(list) > 0 {
			return list[:min(len(list), shownSets)]
		}
	}
	single := c.policy.Policy() == topology.SingleNUMANode
	tried := 0
	for size := 1; size < machine.Len(); size++ {
		var all, possible [][]ledger.Shortage
		for nodes := range numa.SubsetsOfSize(machine, size) {
			if tried++; tried > triedSets {
				return nearest(possible)
			}
			list := c.bus.Explain(c.failed.view, c.failed.req, nodes)
			if len(list) == 0 {
				return nil
			}
			all = append(all, list)
			if !slices.ContainsFunc(list, hopeless) {
				possible = append(possible, list)
			}
		}
		switch {
		case len(possible) > 0:
			return nearest(possible)
		case single:
			return nearest(all)
		}
	}
	return nil
}

// distinct leaves out what was said before.
func distinct(list []ledger.Shortage) (out []ledger.Shortage) {
	for _, s := range list {
		said := func(o ledger.Shortage) bool { return o.Resource == s.Resource && o.Nodes == s.Nodes }
		if !slices.ContainsFunc(out, said) {
			out = append(out, s)
		}
	}
	return out
}

// hopeless tells whether the nodes would not do even if they were idle.
func hopeless(s ledger.Shortage) bool { return s.Need > s.Free+s.Held+s.Withheld }

// nearest returns the shortages of the few node sets that lack least.
func nearest(sets [][]ledger.Shortage) []ledger.Shortage {
	lack := func(list []ledger.Shortage) (sum float64) {
		for _, s := range list {
			sum += float64(s.Need-s.Free) / float64(s.Need)
		}
		return sum
	}
	slices.SortStableFunc(sets, func(a, b []ledger.Shortage) int { return cmp.Compare(lack(a), lack(b)) })
	return slices.Concat(sets[:min(len(sets), shownSets)]...)
}
