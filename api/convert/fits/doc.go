// Package fits turns what the NUMA nodes of a machine have left, and when pods fit there, into messages.
//
// Invariants: no decision is taken here; a fingerprint depends on the set of pods, not on their order.
package fits
