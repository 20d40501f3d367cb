// Package task runs the parts of a daemon.
//
// Words:
//
//   - task: a function that runs until its context ends.
//   - stop: a function that ends a part in an orderly way. Stops run in reverse order of
//     their registration.
//
// Invariants: the first task that fails ends all others. The contexts of tasks end only
// after every stop has run. A panic in a task is an error. Run returns only after every
// task has returned, and after every stop has run or its time is over.
package task
