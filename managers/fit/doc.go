// Package fit computes what each NUMA node has left, and which pods need it.
//
// Words:
//
//   - capacity, allocatable, available: what a node has, what of it pods may have, and what of that
//     no pod has. Available is what a request on this node alone can get.
//   - aligned: a manager places the resource on NUMA nodes. Otherwise a request can have it from
//     anywhere, and the amounts of one node decide nothing.
//   - exclusive pod: one that runs with a resource that no other pod can have at the same time. The
//     scheduler plugin of NodeResourceTopology counts pods in the same way.
//
// Invariants: the same view, managers and devices give the same answer; no amount is larger than
// the one before it in the order capacity, allocatable, available. CPUs are counted as whole ones,
// memory and huge pages in bytes.
//
// Other modules may import this package, and every release may change it.
package fit
