package hint

import "time"

// Kind says which of the four shapes an Answer has.
type Kind string

const (
	// NoPreference: any node will do.
	NoPreference Kind = "no-preference"
	// Impossible: no node set can serve the request; Reason says why.
	Impossible Kind = "impossible"
	// Options: the node sets that can serve it, listed.
	Options Kind = "options"
	// ByRule: the node sets that can serve it, described by a Rule, and any number
	// of others beside it.
	ByRule Kind = "rule"
)

// Answer is what a provider says about one resource. Reason is set for
// Impossible, Hints for Options, Rule for ByRule.
type Answer struct {
	Kind   Kind
	Reason string
	// Hints in enumeration order: by size of the node set, then by sorted ids.
	// With ByRule they are further node sets, which the rule does not describe;
	// there may be none, and each names nodes.
	Hints []Hint
	Rule  *Rule
	// Because says, for people, what the answer follows from; may be empty.
	Because string
	// Wait is set for Impossible where time may change that.
	Wait *Wait
}

// Wait is something that would have to happen by itself before a request can be
// served: a condition as the provider names it ("PluginAway") of a resource.
type Wait struct {
	Condition string
	Resource  string
	// Since is when the wait began, which bounds it; zero where nothing does.
	Since time.Time
	// Undecided means that nobody has looked at the request as a whole: it is no
	// refusal, even where there are no deferrals.
	Undecided bool
}

// Waiter is an error that time may resolve.
type Waiter interface {
	error
	// Waits reports what would have to happen.
	Waits() Wait
}

// ResourceAnswer is an Answer with the resource it is about.
type ResourceAnswer struct {
	Resource string
	Answer
}
