// Package simulation computes, without berthd, what a machine would answer to
// pods: with berthd's configuration, its managers and its engine, on a machine
// that was recorded or simulated.
//
// Words:
//
//   - scene: machine, configuration and devices, before any pod is there.
//   - row: what becomes of the same pods under one planning and one topology policy.
//   - room: how many more of a pod would be admitted after all others.
//
// Invariants: the same scene and pods give the same simulation; a pod gets the
// verdict and the claims that berthd would give it on that machine in that order;
// no other process is called, and nothing outside of it is changed.
package simulation
