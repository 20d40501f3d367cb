// Package podresources serves the kubelet's protocol for readers of allocations,
// podresources v1 and v1alpha1 (KEP-606, KEP-2043, KEP-3695), from the ledger and the device
// inventory. Beside a kubelet, the ledger also has what the kubelet has allocated to a container, as berth-nri has reported it
// with the pod. The package changes nothing.
//
// Words:
//
//   - entry: one device id with one NUMA node. The protocol lists devices in this form, so
//     a device near two nodes has two entries.
//   - active: admitted and not removed. Only active pods are listed.
//   - external device: a device that another program, such as a kubelet, has allocated.
//
// Invariants: an answer is computed from one view of the ledger and is sorted, so the same
// state gives the same bytes. Sidecars are listed, other init containers are not. CPUs of
// the shared pool are listed for no container.
//
// CPUs and memory of a resource claim are no container's cpu_ids and memory, because several containers and pods may use a
// claim: a reader that adds them up would count them several times. A container has the claim in dynamic_resources, as with a
// kubelet. GetAllocatableResources has nothing that a claim holds. So for CPUs and memory, what is allocatable minus what List
// has is what pods can still have by their requests.
package podresources
