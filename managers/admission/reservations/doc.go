// Package reservations keeps what a plan counts as allocated before the ledger has it.
//
// Words:
//
//   - reservation: the record of a pod with the claims of a confirmed plan, or with its new size, until the commit or without one.
//   - ending: a pod that is being removed. It keeps its claims until its last process has exited.
//   - counted: a view of the ledger with the reservations added.
//
// Invariants: a record is copied when it comes, and never changed. A counted view has every pod that is reserved or committed
// when it is taken: reservations are read before the view, and end after the commit. Whoever waits on Counted.Ended is woken by the
// next reservation or removal that ends.
//
// The package decides nothing about pods: the admission lock orders the plans that are reserved.
//
// Other modules may import this package, and every release may change it.
package reservations
