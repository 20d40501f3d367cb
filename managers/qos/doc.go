// Package qos knows what the tiers of the cgroup tree hold: the parents of all
// pods of one QoS class. It turns the pods of a view into wanted nodes for
// package cgroup and does nothing else.
//
// Words:
//
//   - tier: the parent of all Burstable or all BestEffort pods, and the node of
//     all pods, which is the parent of the Guaranteed ones.
//   - reservation: what Guaranteed (and Burstable) pods are promised of the
//     node's memory, and what is therefore kept from the classes below.
//
// Invariants: values agree with Kubernetes 1.36; the same view gives the same
// nodes; pods are those of the ledger, so a tier follows what was admitted, not
// what is wished for.
package qos
