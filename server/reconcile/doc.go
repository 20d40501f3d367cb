// Package reconcile keeps the cgroup tree equal to the ledger.
//
// Words:
//
//   - pass: observe the tree, compare it with what follows from a view, apply
//     the difference.
//   - settled: a view is settled when a pass for it, or for a later one, has
//     succeeded; then nobody runs where that view forbids.
//   - leaving: a pod whose cgroup is being removed while the ledger still
//     knows the pod; a pass must not make it again.
//
// Invariants: values come from the ledger and from nowhere else, so a pass may
// be repeated at any time and after any crash; a container with CPUs of its own
// starts only when its view is settled; passes never overlap.
package reconcile
