// Package cgrouptest has the contract suite for cgroup.Tree. The tree in memory (package
// memtree) and the drivers in server/internal/host all run it.
//
// Words:
//
//   - fixture: a tree for the suite, with a cgroup for the tests and a source of processes.
//
// Invariant: the suite changes nothing outside the fixture's cgroup. If a tree lacks a
// feature, the tests that need it are skipped by name.
//
// Other modules may import this package, and every release may change it.
package cgrouptest
