// Package transition plans the steps from the present claims of running containers to other claims,
// with their order and cost. It changes claims only. On which CPUs a
// container may run between two steps, and in which order cpusets are written, is the task of
// managers/placement, which follows the claims of each step.
//
// Words:
//
//   - change: the claims of a pod on CPUs and memory before the first step and after the last one. Other
//     claims of the pod stay.
//   - unit: a container of a change, or a pod as a whole.
//   - widen: a unit gets its future resources, in addition to its present ones.
//   - migrate: the pages of a container move off the NUMA nodes that the container will not have.
//   - hand over: a unit releases CPUs for which another unit waits. It keeps at least as many as before the
//     first step, or as after the last one.
//   - narrow: a unit releases everything except its future resources.
//   - exchange: units that wait for each other's CPUs. They hand over through CPUs that are free.
//
// Invariants, which New checks on a draft after each step:
//
//   - No two owners have the same CPU, except those that the ledger allows to share. No NUMA node has more
//     memory claimed than pods may have there, unless it has become smaller since a pod holds the memory for its move.
//   - A unit never has fewer CPUs, or less memory, than the smaller of what it had and what it will have.
//   - Containers on shared CPUs always have some.
//   - The claims of devices and of external providers do not change.
//
// A plan does not store its steps: New with the same changes, on the claims after any step, returns the
// remaining steps. So after a crash it continues from the claims and the changes in the ledger.
// The reverse of its changes (From and To exchanged) leads back from any step, and can be reversed in turn. As long as
// other pods do not need what the changes release, neither way is ever refused.
//
// Other modules may import this package, and every release may change it.
package transition
