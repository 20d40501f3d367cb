package ledger

import (
	"iter"

	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/machine"
)

// State is everything that a view has, as plain data.
type State struct {
	Content
	Rules      Rules
	Epoch      Epoch
	Generation uint64
	// Recorded is the number of the last entry of the history that led to the state; 0 without one.
	Recorded  uint64
	Uncertain string
	Override  *Override
	// Traces are in the order of their numbers. The pods' own ones are among them.
	Traces      []StoredTrace
	TraceLimits TraceLimits
}

// StoredTrace is a trace with the number that names it in every view of a ledger, and its stored size in bytes.
type StoredTrace struct {
	Number uint64
	Trace  *Trace
	Size   int
}

// NewView returns the view of a state. The view owns the pods from then on.
func NewView(s State) *View {
	v := &View{
		rules: s.Rules, epoch: s.Epoch, generation: s.Generation, recorded: s.Recorded, uncertain: s.Uncertain, override: s.Override,
		bindings: bindings{}.with(s.Bindings), resources: s.Resources, leases: s.Leases, externalProviders: s.ExternalProviders,
		traces: traces{limits: s.TraceLimits},
	}
	numbers := make(map[*Trace]uint64, len(s.Traces))
	for _, t := range s.Traces {
		v.traces.load(t)
		numbers[t.Trace] = t.Number
	}
	for uid, p := range s.Pods {
		v.pods = v.pods.Set(uid, p)
		if number, ok := numbers[p.Trace]; ok {
			v.traces.ofPods = v.traces.ofPods.Set(uid, number)
		}
	}
	for uid, u := range s.Unknown {
		v.unknown = v.unknown.Set(uid, u.kept())
	}
	v.derive()
	return v
}

// Empty returns a view that holds nothing, for deciding without a ledger: what a
// draft makes of it is a view again. It is of generation 0 and keeps no traces.
func Empty(rules Rules) *View { return NewView(State{Rules: rules}) }

// Past tells how an earlier state differs from a later one.
type Past struct {
	Content
	// Exchanged means that pods of Content have CPUs that others, which are not part of it, have in the later state.
	Exchanged bool
	// Rules are nil if they are the same. Machine is theirs.
	Rules   *PastRules
	Machine *machine.Topology
	// Revision of the earlier state, unless it is SameRevision.
	Revision     uint64
	SameRevision bool
}

// Before returns the view of an earlier state. It does not lead to the later one. It has the resources and providers of
// the later view.
func (v *View) Before(p *Past) *View {
	before := v.with(&p.Content, v.generation)
	if p.Exchanged {
		before.derive()
	}
	before.facts.settle()
	if p.Rules != nil {
		before.rules, before.override = p.Rules.On(p.Machine), p.Rules.Override
	}
	if !p.SameRevision {
		var ok bool
		if before.generation, ok = v.epoch.Generation(p.Revision); !ok {
			before.epoch.Base, before.generation = 0, p.Revision // of an earlier epoch
		}
	}
	return before
}

// FormerUnknown yields the uids of unknown living pods that another view has not, or not like this, with what was known
// of them; then those of its own that this view does not have, with nil.
func FormerUnknown(old, next *View) iter.Seq2[string, *UnknownLivePod] {
	return func(yield func(string, *UnknownLivePod) bool) {
		for _, had := range []bool{true, false} {
			for c := range ordered.Diff(old.unknown, next.unknown) {
				if c.Was == had && c.Old != c.New && !yield(c.Key, c.Old) {
					return
				}
			}
		}
	}
}
