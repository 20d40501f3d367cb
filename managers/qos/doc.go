// Package qos computes the cgroups of the QoS classes: the parents of all pods of one class.
// It turns the pods of a view into desired nodes for package cgroup.
//
// Words:
//
//   - tier: the parent of all Burstable or all BestEffort pods, or the node of all pods,
//     which is the parent of the Guaranteed ones.
//   - reservation: the part of the node's memory that Guaranteed (and Burstable) pods
//     request, and that lower classes therefore cannot use.
//
// Invariants: values agree with Kubernetes 1.37. The same view gives the same nodes. Only
// admitted pods count.
//
// Other modules may import this package, and every release may change it.
package qos
