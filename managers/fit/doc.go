// Package fit computes the free resources of each NUMA node, and the pods that use such resources.
//
// Words:
//
//   - capacity, allocatable, available: all resources of a node, the part for pods, and the free part
//     of that. Available is the most that a request on this node alone can get.
//   - aligned: a manager places the resource on NUMA nodes. Otherwise a request may get it from any
//     node, and the amounts of one node do not limit it.
//   - exclusive pod: a running pod with a resource that no other pod can have at the same time. The
//     scheduler plugin of NodeResourceTopology counts pods in the same way.
//
// Invariants: the same view, managers and devices give the same answer; no amount is larger than
// the one before it in the order capacity, allocatable, available. CPUs are counted as whole ones,
// memory and huge pages in bytes.
//
// Other modules may import this package, and every release may change it.
package fit
