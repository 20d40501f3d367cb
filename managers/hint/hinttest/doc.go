// Package hinttest is the contract of a hint provider as a test suite. Every implementation
// of hint.Provider runs it:
//
//	func TestContract(t *testing.T) {
//		hinttest.Run(t, func() hinttest.Setup { … })
//	}
//
// Words:
//
//   - setup: a provider, a view and pods for the test. Each call of the factory returns an
//     equal, new setup.
//   - promise: one rule of the contract. A finding names the broken promise and the object.
//
// The promises: the name is stable. Answers have the right form (hint.CheckReply), and are the
// same for each call and for each new provider. A provider stores nothing between calls and
// does not change the view. Plans have the right form (hint.CheckPlan), satisfy the ledger's
// rules, and are the same for each call. Errors of plans have a class. Prepare can be repeated
// for one admission and does not change the plan.
//
// Other modules may import this package, and every release may change it.
package hinttest
