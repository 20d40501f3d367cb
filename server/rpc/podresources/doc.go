// Package podresources serves the kubelet's own protocol for readers of
// allocations, podresources v1 and v1alpha1 (KEP-606, KEP-2043, KEP-3695), over
// the ledger and the inventory of devices. It changes nothing.
//
// Words:
//
//   - entry: one device id with one NUMA node, the form in which the protocol
//     lists devices; a device near two nodes makes two entries.
//   - active: admitted and not removed. Only active pods are listed.
//
// Invariants: an answer comes from one view of the ledger and is sorted, so that
// the same state gives the same bytes; ordinary init containers are never listed,
// sidecars are; CPUs of the shared pool are nobody's.
package podresources
