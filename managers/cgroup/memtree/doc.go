// Package memtree is a cgroup tree in memory that obeys the kernel's rules: for
// tests, and for running berth where no cgroups can be written to.
//
// Words:
//
//   - group: one cgroup of the tree.
//   - process: a number in a group; it may fork whenever another one dies, or
//     refuse to die.
//
// The rules kept here are those that decide over the order of things: on v1 a
// CPU set lies within its parent's and is not narrowed below its children's, no
// process enters a group without CPUs, and a quota does not exceed the parent's;
// on v2 an empty set means the parent's, a group that hands controllers down
// holds no processes, and a memory limit may drop below the use; on both a group
// with processes is only removed after they were killed.
//
// Invariant: after an error the tree is as a kernel would have left it.
package memtree
