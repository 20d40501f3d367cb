// Package node knows what the node has as a whole, what of it is kept from pods,
// and what that leaves: the kubelet's "node allocatable". It answers with amounts
// and with wanted nodes for package cgroup, and refuses a pod for which there is
// no room left.
//
// Words:
//
//   - capacity: what the machine has.
//   - reservation: what the system, the node's agents and the hard eviction
//     thresholds keep.
//   - allocatable: what is left for pods. It has three meanings: see
//     Manager.Limit, Manager.Absolute and Manager.Allocatable.
//   - enforcement key: a word of enforceNodeAllocatable; it says which cgroups get
//     limits out of these amounts.
//   - reserved cgroup: the cgroup of the system or of the node's agents, which
//     somebody else has made.
//
// Invariants: amounts agree with Kubernetes 1.36, percentages included; eviction
// thresholds lower what pods are admitted to, never the limit of their cgroup; a
// configuration that reserves more than there is does not start.
package node
