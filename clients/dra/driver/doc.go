// Package driver makes berthd a driver of dynamic resource allocation (DRA, KEP-4381): the scheduler
// chooses a NUMA node for a claim, and berthd allocates exclusive CPUs, memory and huge pages of
// exactly this node. It publishes the amounts for claims, and prepares and unprepares claims for the
// kubelet. berth-nri places the containers that use a claim on the claim's CPUs and memory nodes.
//
// Words:
//
//   - claim: a ResourceClaim with an allocation. In berthd it is a resource claim of the owner
//     "dra", with the claim's uid.
//   - device: a NUMA node, called numa-0, whose capacity several claims consume.
//   - part: what a claim has of a device: a container of the claim in berthd, and a CDI device.
//   - consumed: the amounts that the scheduler has given to a claim.
//   - CDI file: the file with the environment of containers that use a claim, read by the runtime. There
//     is one for each prepared claim, with a CDI device for each part; it also has the claim's allocation.
//   - pool: what claims may have of a device now. It shrinks when CPUs go offline, and with the configuration.
//   - unrestored: a prepared claim that berthd has lost and refuses to admit again.
//   - forgotten: a claim in berthd that the API server has not allocated on this node any more, and that no container uses.
//   - parameters: the opaque configuration of a claim, BerthClaimParameters.
//
// The ledger of berthd has the allocations of claims. The order of steps follows from this. A claim
// is admitted before its CDI file is written, and its CDI file is removed before the claim is. If the
// driver is killed between two steps, the kubelet repeats the call, and each step is idempotent. A CDI file that others remove or
// change is written again, because the kubelet has no prepared claim prepared again. If
// berthd has lost its ledger, claims with a CDI file are admitted again with the allocation in the
// file, before any other claim is admitted.
//
// A claim that is unrestored has CPUs that berthd may give away. Nothing of its NUMA nodes is published or given to other claims
// until it is admitted again or unprepared.
//
// Huge pages are published with one pool only. The kubelet creates the cgroup of a pod with the limits (hugetlb) of the pod's own
// requests, 0 without one. NRI can change the limit of a container, and not that of its pod, and a process beyond the limit ends with
// SIGBUS. A program that raised the pod's limit would lose it with the next resize in place: in Kubernetes 1.37.2 this sets the limits of
// all page sizes to 0 (maybeSetHugetlb in pkg/kubelet/cm/cgroup_manager_linux.go).
//
// Calls that admit or release claims come one by one. No lock is held over a call of berthd, the API server or the kubelet: a
// call that waits leaves when its context ends, and readiness, metrics and health do not wait. What follows berthd and what
// follows the API server are two loops, so that neither waits for the other.
//
// Invariants:
//
//   - A claim with unsupported contents is refused: unknown capacities and parameters.
//   - A CDI file is written completely or not at all, in a directory that no other user can write
//     to.
//   - No two prepared claims have a CPU in common; each answer of berthd is compared with the CDI
//     files.
package driver
