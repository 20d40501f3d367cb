// Package numa holds sets of NUMA nodes, their orders and enumerations, the
// distances between nodes, and the search for the smallest set of nodes that has
// enough of something.
//
// # Words
//
//   - node: a NUMA node as the kernel numbers it. It may have CPUs, memory, or
//     both.
//   - id: its number N in /sys/devices/system/node/nodeN, 0 to MaxNodes-1. Ids
//     need not be contiguous: 0 and 8 is an ordinary machine.
//   - position: the place of a node among the online nodes in ascending order.
//     The kernel writes distances by position; nothing else here counts so.
//   - less, narrower: the two orders in which the reference, the kubelet's
//     topology manager, prefers one mask to another.
//   - weight: what a node has of something, as CPUs, bytes or devices.
//   - need: how much of it the nodes of a set must have together.
//   - enumeration order: the order in which the reference lists masks. It is not
//     the narrower order.
//
// # Invariants
//
//   - A Mask is one 64-bit word, so that ==, map keys and copies cost what a
//     number costs. The limit of 64 ids is the reference's as well; a machine
//     beyond it is refused at discovery.
//   - Parse(m.String()) == m for every Mask m.
//   - Distances never change and are read by id, never by position.
//
// Which masks are good for a container is not decided here: hints are merged in
// topology.
//
// Other modules may import this package, and every release may change it.
package numa
