package hint

import "github.com/berthd/berth/managers/numa"

// Kind says which of the four shapes an Answer has.
type Kind string

const (
	// NoPreference: any node will do.
	NoPreference Kind = "no-preference"
	// Impossible: no node set can serve the request; Reason says why.
	Impossible Kind = "impossible"
	// Options: the node sets that can serve it, listed.
	Options Kind = "options"
	// ByRule: the node sets that can serve it, described by a Rule.
	ByRule Kind = "rule"
)

// Answer is what a provider says about one resource. Reason is set for
// Impossible, Hints for Options, Rule for ByRule.
type Answer struct {
	Kind   Kind
	Reason string
	// Hints in enumeration order: by size of the node set, then by sorted ids.
	Hints []Hint
	Rule  *Rule
	// Wait is set for Impossible where time may change that.
	Wait *Wait
}

// Wait is something that would have to happen by itself before a request can be
// served: a condition as the provider names it ("PluginAway") of a resource.
type Wait struct {
	Condition string
	Resource  string
}

// Waiter is an error that time may heal.
type Waiter interface {
	error
	// Waits tells what would have to happen.
	Waits() Wait
}

// Rule describes a family of node sets without listing it: every M within
// Universe that contains Must and whose Weights sum up to at least Need. The sets
// of exactly PreferredSize nodes are preferred.
type Rule struct {
	Universe numa.Mask
	Must     numa.Mask
	// Weights by node id; what a node contributes to Need.
	Weights       [numa.MaxNodes]uint64
	Need          uint64
	PreferredSize int
}

// ResourceAnswer is an Answer with the resource it is about.
type ResourceAnswer struct {
	Resource string
	Answer
}
