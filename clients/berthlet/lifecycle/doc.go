// Package lifecycle decides what is to be done next for a pod: a pure function
// of the pod that is wanted, of what is seen of its containers, and of the time.
// It does no I/O, starts nothing and reads no clock.
//
// Words:
//
//   - role: what a container is for. An init container has to succeed before the
//     next one starts; a sidecar (an init container with restart policy Always,
//     KEP-753) has to run before the next one starts, and ends after the others;
//     an app container is what the pod is there for.
//   - attempt: one run of a container, counted from 0. A container that is
//     restarted has another attempt; its restart count is the attempt's number.
//   - pause: how long a container is left alone after an attempt before the next.
//     It grows from attempt to attempt, and is forgotten after a long run.
//   - trouble: a step that failed, and that is tried again after a while.
//   - outcome: how a pod ended by itself: Succeeded or Failed.
//   - step: one thing to do, for one container or for the pod.
//
// Invariants: no container is created before the init containers in front of it
// succeeded and the sidecars in front of it run; nothing is created for a pod
// that is deleted, rejected or over; a pod is released only when none of its
// containers is alive; of a container there is one step at a time.
package lifecycle
