// Package allocations turns what pods hold in the ledger, and how the devices among it are, into messages.
//
// Words: an allocation is all claims of a pod, by container.
//
// Invariants: no decision is taken here; a view and a snapshot give the same message each time.
package allocations
