// Package memory hands out memory and huge pages by NUMA node: which node sets
// can hold a container's memory, which of them it gets, and what is left. It
// takes the decisions of the kubelet's memory manager (kubernetes v1.36.3,
// KEP-1769) where those keep the rules below; docs/deviations.md lists the
// others.
//
// # Words
//
//   - resource: memory, or huge pages of one size (hugepages-2Mi). Regular memory
//     does not include the huge pages.
//   - total, reserved, allocatable: what a node has of a resource, what of it is
//     kept for the system, and what may be given to pods.
//   - block: an amount of one resource on a set of nodes, held by a container or
//     by a pod as a whole. It may lie anywhere on its nodes.
//   - held, free: what blocks take of a node, and what they leave.
//   - group: nodes that are used together because a block spans them. A node with
//     a block on it alone is its own group. A block on several nodes needs nodes
//     without blocks, or exactly an existing group.
//   - capable: a node set whose allocatable amounts would do for a request on an
//     idle machine. The smallest ones are preferred, even if they are busy.
//   - fitting: a node set whose free amounts do.
//   - handed on: what an init container held and a later container of its pod
//     takes over, on exactly the same nodes.
//   - extension: a wider node set, where the one that was decided does not fit.
//
// # Invariants
//
//   - An answer follows from the machine, the configuration, the view and the
//     request alone; nothing is remembered between calls.
//   - Held and free amounts follow from the claims: what a claim leaves is free
//     when the claim is gone, and a restart changes nothing.
//   - No plan takes more of a node, or of a group, than is free there.
//   - Amounts never wrap around: a node that has less than is reserved there has
//     nothing to give.
//
// Limits are not put in force here: the reconciler writes cpuset.mems and the
// limits of huge pages, from the same ledger.
package memory
