// Package task runs the parts of a daemon together.
//
// Words:
//
//   - task: something that runs until its context ends.
//   - stop: what ends a part in an orderly way; stops run in reverse order of
//     their registration.
//
// Invariants: the first task to fail ends all others; no task is told to end
// before every stop has run; a panic in a task is an error like any other; Run
// returns only when every task has returned and every stop has run or its time
// was up.
package task
