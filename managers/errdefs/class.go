// Package errdefs holds the classes of error that cross package borders in berth.
//
// A manager's message describes the failure. This package adds the one thing that callers decide on: the
// class. The servers turn a class into a status code, the admission engine turns a refusal into a verdict, and both ignore the
// text.
//
// Words:
//
//   - class: the kind of failure, and so who has to act: the caller, the operator, or no
//     one.
//   - reason: the short name under which the kubelet reports a rejected pod. Clients match on it, so it is the
//     kubelet's. Only refusals carry one.
//   - violation: one field of the input and what is wrong with it.
//   - refusal: a correct answer of "no" to a correct question. It is an error in Go, and an answer on the wire.
//
// Invariants: an error without a class counts as Internal; wrapping with %w keeps class,
// reason and fields; the message of an Error is complete without its chain.
//
// Other modules may import this package, and every release may change it.
package errdefs

import "strconv"

// Class is the kind of failure that an error stands for. The zero value is Internal, so that an unclassified error is
// never taken for the caller's mistake.
type Class int

const (
	// Internal is a broken assumption inside berth; it is always a bug or a failing machine.
	Internal Class = iota
	// Invalid is input that can never be right, whatever the state of the node. Fields name the places.
	Invalid
	// NotFound is a well-formed name of something that is not known here.
	NotFound
	// Exists is a name that another object has already; repeating never helps.
	Exists
	// Refused is a decision against a well-formed request. It carries a Reason.
	Refused
	// Conflict is a change made to an outdated state, or something that another process has at the moment; reading again and
	// repeating may help. Two permanent owners of one thing are of class Exists or Precondition.
	Conflict
	// Precondition is a request that the present state forbids until something else is done first, such as admitting a
	// known pod uid with another specification.
	Precondition
	// Unsupported is a request for something that this build, kernel or configuration does not do.
	Unsupported
	// Unavailable is a needed party that does not work at the moment: a full disk, a plugin that is away.
	Unavailable
	// Exhausted is a limit of berth itself that the request would exceed, such as a message size.
	Exhausted
	// PermissionDenied is a caller that lacks the role the call needs.
	PermissionDenied
	// Deadline is time that ran out before the answer was there.
	Deadline
	// Canceled is a caller that cancelled.
	Canceled
	// Corrupt is stored or received data that breaks its own rules.
	Corrupt
	// Gone is a place in a sequence whose continuation was dropped; start over.
	Gone
)

var classNames = [...]string{
	Internal:         "internal",
	Invalid:          "invalid",
	NotFound:         "not found",
	Exists:           "exists",
	Refused:          "refused",
	Conflict:         "conflict",
	Precondition:     "precondition",
	Unsupported:      "unsupported",
	Unavailable:      "unavailable",
	Exhausted:        "exhausted",
	PermissionDenied: "permission denied",
	Deadline:         "deadline",
	Canceled:         "canceled",
	Corrupt:          "corrupt",
	Gone:             "gone",
}

// String gives the class in lower case words, "class(N)" for a number that is none.
func (c Class) String() string {
	if c < 0 || int(c) >= len(classNames) {
		return "class(" + strconv.Itoa(int(c)) + ")"
	}
	return classNames[c]
}
