// Package convert turns messages that every client has into the managers' types and back: sets, words, pods, claims, hints
// and shortages. The packages below it do so for allocations, decisions, free resources and cgroups. Input is read in these packages
// only: a pod that leaves convert is well-formed, or an error names every field that is wrong.
//
// Invariants: no decision is taken here; the output of one direction is valid input of the other and reads back the same; no
// input makes it panic; it imports no manager that decides, so that a provider of hints compiles none.
package convert
