// Package transition plans how running containers get from the claims that they have to other
// ones: after which steps, in which order, at which cost. It changes claims only. On which CPUs a
// container may run between two steps, and in which order cpusets are written, is the task of
// managers/placement, which follows the claims of each step.
//
// Words:
//
//   - change: the claims on CPUs and memory that a pod shall have, and those that it had before the first
//     step. Claims that it does not name stay.
//   - unit: a container of a change, or a pod as a whole.
//   - widen: a unit gets what it will have, and keeps what it has.
//   - migrate: the pages of a container leave the NUMA nodes that it gives back.
//   - hand over: a unit gives back CPUs for which another unit waits. It keeps at least as many as it had, or
//     as it will have.
//   - narrow: a unit keeps only what it will have.
//   - exchange: units that wait for each other's CPUs. They hand over through CPUs that are free.
//
// Invariants, which New checks on a draft after each step:
//
//   - No two owners have the same CPU, except those that the ledger allows to share. No NUMA node has more
//     memory claimed than pods may have there.
//   - A unit never has fewer CPUs, or less memory, than the smaller of what it had and what it will have.
//   - Containers on shared CPUs always have some.
//   - The claims of devices and of external providers do not change.
//
// A plan needs no memory of its steps: New with the same changes, on the claims after any step, has
// the remaining steps. So after a crash it continues from the claims and the changes in the ledger.
// The reverse of its changes (Change.Reverse) leads back from any step.
//
// Other modules may import this package, and every release may change it.
package transition
