// Package cgrouptest has the contract suite that every cgroup.Tree must pass: the
// tree in memory (package memtree) and the drivers under server/host.
//
// Words:
//
//   - fixture: a tree for the suite, with a place in it and processes to put there.
//
// Invariant: the suite touches nothing outside of the fixture's place, and what a
// tree lacks skips the tests that need it by name.
package cgrouptest
