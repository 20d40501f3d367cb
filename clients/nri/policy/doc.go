// Package policy makes berthd the placement policy of a container runtime that
// speaks NRI, the Node Resource Interface of containerd and CRI-O: what the
// runtime is about to do comes in as events, what berthd decides goes back as
// adjustments of the container that is made and as updates of those that run.
//
// Words:
//
//   - sandbox: a pod as the runtime has it. It is there before its containers
//     are known.
//   - member: a container of the runtime that this policy deals with.
//   - whole, apart: the two ways to admit. A pod whose specification is known is
//     admitted as a whole, before its sandbox starts. Of any other pod, each
//     container is admitted by itself when it is made, as a pod of one container
//     in berthd, under the uid POD-UID.CONTAINER: NRI tells of a sandbox before it
//     tells of containers, and of each of them only when it is made.
//   - unmanaged: a member that berthd does not know: one that was let pass. It
//     gets the shared CPUs.
//   - possible CPUs: every set that the runtime was told for a member and that is not
//     disproved. Package placement keeps them, and the member's phase; what NRI tells and
//     what the kernel shows of a process are its events here (track.go).
//   - answered, pushed: CPUs that are on their way to the runtime, in the answer to an event
//     or in an update that was requested. The runtime has carried an answer out before its
//     next event, and before an update that is requested after the answer. Neither says how
//     that went: a container that is not stored yet is left out in silence, and one whose
//     start is under way has read its CPUs before. The kernel tells, once there is a process.
//   - size: how much cpu and memory a member asks for, which a resize changes.
//
// What is lost apart: alignment of the pod as a whole (topology scope "pod"),
// devices of plugins that are registered with berthd, and the distinction of init
// containers. What a container that has ended had is kept for its restart, until
// another container of the pod is made for the first time: an init container hands
// on in this way, and one that crashes comes back to where it was.
//
// Requests apart are rebuilt from what the kubelet tells the runtime: cpu.shares
// gives the CPU request exactly (the kubelet rounds down, so rounding up is the
// inverse), quota and period the CPU limit, and the cgroup parent the QoS class.
// A memory request below the limit cannot be rebuilt, and counts as the limit.
//
// Invariants: while berthd, or its answer, is missing, no container starts (or, if
// it was configured so, one starts on the shared CPUs as last known, never on all
// CPUs); a container with CPUs of its own does not start while they are possible CPUs
// of another member, and nobody waits for a member with whom he shares no CPU; what a
// pod has is given back when its last process has gone; no member gets a size that berthd does
// not agree to, unless it is let pass; no lock is held over a call into the
// runtime, which holds a lock of its own over its calls in here.
package policy
