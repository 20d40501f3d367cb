// Package lifecycle plans the next steps for a pod. It is a pure function of the wanted pod, the
// state of its containers, and the time. It does no I/O, starts nothing and reads no clock.
//
// Words:
//
//   - role: an init container must succeed before the next one starts. A sidecar (an
//     init container with restart policy Always, KEP-753) must run before the next
//     one starts, and ends after the others. App containers are all others.
//   - attempt: one run of a container, counted from 0. A restarted container has
//     another attempt; its restart count is the attempt's number.
//   - pause: the time between two attempts of a container. It grows with each
//     attempt, and is reset after a long run.
//   - trouble: a failed step that is repeated after a while.
//   - outcome: the result of a pod that ended by itself: Succeeded or Failed.
//   - step: one action, for one container or for the pod.
//
// Invariants:
//
//   - No container is created before the preceding init containers have succeeded and
//     the preceding sidecars run.
//   - Nothing is created for a pod that is deleted, rejected or over.
//   - A pod is released only when none of its containers is alive.
//   - A container has one step at a time.
package lifecycle
