// Package ledger has the commands of berthctl that dump, check, import and export the ledger.
//
// Invariants: a file of a kubelet is only read.
package ledger
