// Command kubectl-berth is a plugin of kubectl: it asks the berths of a cluster's nodes, as berthctl does on one node.
//
// It runs kubectl, so that clusters, users and their rights are those of kubectl: to find the pods of berth's DaemonSets, and to run
// "berthctl proxy" in the pod of a node, through which it calls the node's berthd. The verbs are berthctl's.
//
// Words:
//
//   - place: the pod of berth on a node, or why there is none that can answer.
//
// Invariants: nothing is written in the cluster but by a verb that says so; there is none now. Who may run it has all rights of berthd on
// the node, because berthd knows its caller only as root of the pod. What kubectl prints is escaped before people see it. A node that does
// not answer is named, and delays the others by --timeout at most.
package main
