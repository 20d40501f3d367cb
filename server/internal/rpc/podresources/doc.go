// Package podresources serves the kubelet's protocol for readers of allocations,
// podresources v1 and v1alpha1 (KEP-606, KEP-2043, KEP-3695), from the ledger and the device
// inventory. It changes nothing.
//
// Words:
//
//   - entry: one device id with one NUMA node. The protocol lists devices in this form, so
//     a device near two nodes has two entries.
//   - active: admitted and not removed. Only active pods are listed.
//
// Invariants: an answer is computed from one view of the ledger and is sorted, so the same
// state gives the same bytes. Sidecars are listed, other init containers are not. CPUs of
// the shared pool are listed for no container.
package podresources
