// Package check compares a view of the ledger with the ledger's invariants and with the current rules.
//
// Words:
//
//   - finding: a violation. A structural one means damage, and forbids a commit. One of policy is about claims that the current machine
//     or configuration would not allow; it is reported, and nothing changes.
//
// Invariants (managers/ledger lists them) depend on a view only, so the same view always has the same findings. A check changes nothing.
//
// Other modules may import this package, and every release may change it.
package check
