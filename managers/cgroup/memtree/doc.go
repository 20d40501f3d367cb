// Package memtree is a cgroup tree in memory that enforces the kernel's rules. Tests use it,
// and berthd without access to cgroups.
//
// Words:
//
//   - group: one cgroup of the tree.
//   - process: a number in a group. It may fork when another process dies, or survive
//     SIGKILL.
//
// The tree enforces the rules that make the order of operations matter. On v1, a CPU set is a
// subset of the parent's and a superset of each child's, no process enters a group without
// CPUs, and a quota does not exceed the parent's. On v2, an empty set means the parent's, a
// group that delegates controllers has no processes, and a memory limit may be below the
// usage. On both, a group is removed only after its processes were killed.
//
// Invariant: after an error the tree has the state that a kernel would have left.
//
// Other modules may import this package, and every release may change it.
package memtree
