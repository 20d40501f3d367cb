// Package ledgertest has what tests of the ledger and of everything above it
// need: a journal in memory that fails on demand, ledgers that are checked when
// their test ends, builders for records and claims, and the contract suite that
// every ledger.Journal must pass.
//
// Words:
//
//   - journal in memory: a ledger.Journal whose content outlives its handles, so
//     that a crash is a second handle on the same content.
//   - failure: what a journal does at its n-th next commit.
//
// Invariant: a ledger opened through this package has been held against
// check.View and against its own journal by the end of its test.
//
// Other modules may import this package, and every release may change it.
package ledgertest
