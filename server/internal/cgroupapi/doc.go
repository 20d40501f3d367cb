// Package cgroupapi has the calls that read, create, change and remove cgroups by hand.
//
// Words:
//
//   - managed: a cgroup whose values follow from the ledger or the configuration. It is not written by hand.
//   - reach: cgroups of pods, others below the configured root, and those that the configuration names.
//
// The reconcile loop owns the tree. A call changes it in a turn of the loop, and excludes the operations on the pod to which a cgroup
// belongs.
//
// Invariants:
//
//   - No call writes a managed cgroup, one of the kernel or of another manager, or one outside of reach.
//   - No call removes a cgroup in which berthd runs, or a managed cgroup is.
package cgroupapi
