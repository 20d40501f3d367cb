// Package hinttest is the contract of a hint provider as a test suite. Whoever
// implements hint.Provider, inside berth or outside, runs it:
//
//	func TestContract(t *testing.T) {
//		hinttest.Run(t, func() hinttest.Setup { … })
//	}
//
// Words:
//
//   - setup: a provider with a view to work on and pods to try; each call of the
//     factory makes the same one afresh.
//   - promise: one thing the contract asks for; a finding names the promise that
//     a provider breaks, and on what.
//
// The promises: a stable name; answers in form (hint.CheckReply), the same each
// time and from each fresh provider; no memory between calls; a view that is
// not changed; plans in form (hint.CheckPlan) that the ledger allows, again the
// same each time; errors of plans that are typed; a Prepare that may be
// repeated for one admission and changes nothing of a plan.
package hinttest
