// Package memory allocates memory and huge pages by NUMA node: which sets of nodes can hold
// a container's memory, which set it gets, and what is left. It makes the decisions of the
// kubelet's memory manager (kubernetes v1.37.2, KEP-1769) where they satisfy the invariants
// below; docs/deviations.md lists the exceptions.
//
// # Words
//
//   - resource: memory, or huge pages of one size (hugepages-2Mi). Regular memory
//     does not include the huge pages.
//   - total, reserved, allocatable: a node's amount of a resource, the part for the system,
//     and the part for pods.
//   - block: an amount of one resource on a set of nodes, held by a container or
//     by a pod as a whole. It may lie anywhere on its nodes.
//   - held, free: the amount of a node that blocks use, and the rest.
//   - group: nodes that are used together because a block spans them. A node with
//     a block on it alone is its own group. A block on several nodes needs nodes
//     without blocks, or exactly an existing group.
//   - capable: a set of nodes whose allocatable amounts are enough for a request on an idle
//     machine. The smallest ones are preferred, even if they are busy.
//   - fitting: a set of nodes whose free amounts are enough.
//   - handed on: what an init container held and a later container of its pod
//     takes over, on exactly the same nodes.
//   - extension: a wider set of nodes, used if the merged one does not fit.
//
// # Invariants
//
//   - An answer depends only on the machine, the configuration, the view and the request;
//     nothing is stored between calls.
//   - Held and free amounts are computed from the claims. When a claim is gone, its amounts
//     are free; a restart changes nothing.
//   - No plan uses more of a node, or of a group, than is free there.
//   - Amounts never wrap around. A node with less than its reservation has nothing
//     allocatable.
//
// The reconciler, not this package, writes cpuset.mems and the limits of huge pages, from
// the same ledger.
//
// Other modules may import this package, and every release may change it.
package memory
