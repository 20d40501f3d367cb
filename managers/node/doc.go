// Package node computes the node's capacity, its reservations, and the rest for pods: the
// kubelet's "node allocatable". It returns amounts and desired nodes for package cgroup, and
// refuses pods that do not fit.
//
// Words:
//
//   - capacity: the resources of the machine.
//   - reservation: the part for the system, the node's agents and the hard eviction
//     thresholds.
//   - allocatable: the rest, for pods. It has three meanings: see Manager.Limit,
//     Manager.Absolute and Manager.Allocatable.
//   - enforcement key: a value of enforceNodeAllocatable. It selects the cgroups that get
//     limits from these amounts.
//   - reserved cgroup: the cgroup of the system or of the node's agents. berth does not
//     create it.
//
// Invariants: amounts agree with Kubernetes 1.37, percentages included. Eviction thresholds
// lower the amount that pods are admitted to, and never the limit of their cgroup. A
// configuration that reserves more than the capacity is refused at the start.
//
// Other modules may import this package, and every release may change it.
package node
