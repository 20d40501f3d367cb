package hint

import "time"

// Kind is one of the four forms of an Answer.
type Kind string

const (
	// NoPreference: any node will do.
	NoPreference Kind = "no-preference"
	// Impossible: no node set can satisfy the request; Reason explains it.
	Impossible Kind = "impossible"
	// Options: the node sets that can serve it, listed.
	Options Kind = "options"
	// ByRule: the node sets of a Rule, and optional hints.
	ByRule Kind = "rule"
)

// Answer is a provider's answer for one resource. Reason is set for Impossible, Hints for
// Options, Rule for ByRule.
type Answer struct {
	Kind   Kind
	Reason string
	// Hints in enumeration order: by size of the node set, then by sorted ids.
	// With ByRule they are further node sets, which the rule does not describe;
	// there may be none, and each names nodes.
	Hints []Hint
	Rule  *Rule
	// Because explains the answer to people; may be empty.
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
	// Undecided means that the request as a whole has not been evaluated. It is no refusal, even
	// without deferrals.
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
