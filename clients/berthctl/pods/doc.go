// Package pods has the commands of berthctl that change what pods have: admit, resize, plan, defrag, allocate, container, remove and
// sync.
//
// Invariants: a command for several pods continues after a failure, and its exit code is the worst result.
package pods
