// Package cgrouptest has what tests of cgroups need: a tree in memory that obeys
// the kernel's rules, and the contract suite that every cgroup.Tree must pass.
//
// Words:
//
//   - group: one cgroup of the tree in memory.
//   - process: a number in a group; it may fork whenever another one dies, or
//     refuse to die.
//   - fixture: a tree for the suite, with a place in it and processes to put there.
//
// The rules kept here are those that decide over the order of things: on v1 a
// CPU set lies within its parent's and is not narrowed below its children's, no
// process enters a group without CPUs, and a quota does not exceed the parent's;
// on v2 an empty set means the parent's, a group that hands controllers down
// holds no processes, and a memory limit may drop below the use; on both a group
// with processes or children cannot be removed.
//
// Invariant: after an error the tree is as a kernel would have left it.
package cgrouptest
