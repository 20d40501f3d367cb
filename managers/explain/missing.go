package explain

import (
	"cmp"
	"errors"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
)

const (
	// triedSets bounds the node sets that are checked.
	triedSets = 64
	// shownSets is how many of them a trace shows: those that lack least.
	shownSets = 4
)

// lacking is a refusal that carries what was missing.
type lacking interface{ Missing() []ledger.Shortage }

// Missing returns what a refused request lacked: on the whole machine; or else as in the
// refusal; or else on node sets of the smallest size that could serve it on
// an idle machine, and that are near to its external devices, and then on those of this size that never could. It is empty
// if such a set lacks nothing: then the request fits, but not as the policy requires.
func (r *Refusal) Missing() []ledger.Shortage { return once(r.lacks()) }

func (r *Refusal) lacks() []ledger.Shortage {
	machine := r.Planned.Machine().NodeMask()
	if device, ok := r.Request.Pod.ClaimDevice(r.Request.Container); ok {
		machine = numa.Of(device.Node) // there is no other for it
	}
	if list := r.Bus.Explain(r.Planned, r.Request, machine); len(list) > 0 {
		return list
	}
	var own lacking
	if errors.As(r.Err, &own) {
		if list := distinct(own.Missing()); len(list) > 0 {
			return list[:min(len(list), shownSets)]
		}
	}
	single := r.Policy.Policy() == topology.SingleNUMANode
	tried := 0
	for size := 1; size < machine.Len(); size++ {
		var all [][]ledger.Shortage
		possible := single
		for nodes := range numa.SubsetsOfSize(machine, size) {
			if tried++; tried > triedSets {
				break
			}
			if !r.near(nodes) {
				continue
			}
			list := r.Bus.Explain(r.Planned, r.Request, nodes)
			if len(list) == 0 {
				return nil
			}
			all = append(all, list)
			possible = possible || !slices.ContainsFunc(list, hopeless)
		}
		switch {
		case possible:
			return nearest(all)
		case tried > triedSets:
			return nil
		}
	}
	return nil
}

// Say puts what the pod of a trace lacks into words. view has the holders. Where nothing is short and the topology policy
// has refused, its merge is the reason.
func Say(view *ledger.View, t *ledger.Trace) {
	t.Missing = nil
	for i := range t.Steps {
		step := &t.Steps[i]
		for k := range step.Shortages {
			t.Missing = append(t.Missing, step.Shortages[k].Text(view))
		}
		if step.Kind == ledger.StepRefused && step.Provider == "" && len(step.Shortages) == 0 && i > 0 &&
			t.Steps[i-1].Kind == ledger.StepMerged {
			t.Missing = append(t.Missing, t.Steps[i-1].Text)
		}
	}
}

// once leaves out a shortage of the node as a whole of which the NUMA nodes have the same one.
func once(all []ledger.Shortage) []ledger.Shortage {
	return slices.DeleteFunc(slices.Clone(all), func(s ledger.Shortage) bool {
		return s.Nodes == "" && slices.ContainsFunc(all, func(o ledger.Shortage) bool {
			return o.Nodes != "" && o.Resource == s.Resource && o.Need == s.Need && o.Free == s.Free
		})
	})
}

// near reports whether each external device of the request is near to one of the nodes, or to none of the machine.
func (r *Refusal) near(nodes numa.Mask) bool {
	machine := r.Planned.Machine().NodeMask()
	for d := range r.Request.External() {
		if d.Nodes.Overlaps(machine) && !d.Nodes.Overlaps(nodes) {
			return false
		}
	}
	return true
}

// distinct leaves out repeated shortages.
func distinct(list []ledger.Shortage) (out []ledger.Shortage) {
	for _, s := range list {
		said := func(o ledger.Shortage) bool { return o.Resource == s.Resource && o.Nodes == s.Nodes }
		if !slices.ContainsFunc(out, said) {
			out = append(out, s)
		}
	}
	return out
}

// hopeless reports whether the nodes would not do even if they were idle.
func hopeless(s ledger.Shortage) bool { return s.Structural || s.Need > s.Free+s.Held+s.Withheld }

// nearest returns the shortages of the few node sets that lack least, those last that could never do.
func nearest(sets [][]ledger.Shortage) []ledger.Shortage {
	never := func(list []ledger.Shortage) int {
		if slices.ContainsFunc(list, hopeless) {
			return 1
		}
		return 0
	}
	lack := func(list []ledger.Shortage) (sum float64) {
		for _, s := range list {
			sum += float64(s.Need-s.Free) / float64(s.Need)
		}
		return sum
	}
	slices.SortStableFunc(sets, func(a, b []ledger.Shortage) int {
		return cmp.Or(cmp.Compare(never(a), never(b)), cmp.Compare(lack(a), lack(b)))
	})
	return slices.Concat(sets[:min(len(sets), shownSets)]...)
}
