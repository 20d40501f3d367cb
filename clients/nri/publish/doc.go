// Package publish keeps the NodeResourceTopology object of a node equal to berthd's answer,
// so that a scheduler has the free resources of each NUMA node. docs/kubernetes.md shows the object.
//
// Words:
//
//   - object: the NodeResourceTopology (topology.node.k8s.io/v1alpha2) that has the node's name. One zone is
//     one NUMA node.
//   - minor change: other available amounts or another set of pods. Pods cause it, one node at a
//     time. It is written after at most a second.
//   - major change: anything else, for example capacity, policy, or an object that does not exist. An upgrade or
//     a configuration causes it, on all nodes at once. So each node writes at a random moment of the
//     spread.
//
// Invariants: at most one write a second; one each ten minutes if the object is as it should be, for the time of the last
// comparison; a failed write is repeated at random moments of growing intervals, at most the spread. The functions in
// object.go and pace.go have no clock and no I/O. After a failed write the object is read before the next one, because
// its outcome is unknown.
package publish
