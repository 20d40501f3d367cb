// Package container is what berthlet wants of a container runtime: seven calls,
// and what goes in and out of them.
//
// Words:
//
//   - pod, to a runtime: what the containers of one pod share (namespaces, a
//     host name). It is opened before the first container and closed after the
//     last.
//   - spec: everything a container is made of. Its values come from the manifest
//     and from berthd's Allocate; a runtime decides nothing.
//   - phase: a container is created (its process is there and stands before its
//     first instruction, so that berthd can put its place in force), running, or
//     exited.
//
// Invariants, which containertest holds every runtime against: a container's
// program does not begin before Start; containers outlive the program that uses
// the runtime; what has exited stays known with its exit code until it is
// removed; every call can be repeated after it failed or was cut off.
package container
