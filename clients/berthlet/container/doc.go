// Package container is berthlet's interface of a container runtime: eight calls, with their
// inputs and outputs.
//
// Words:
//
//   - pod, to a runtime: the resources that the containers of a pod share (namespaces,
//     a host name). It is opened before the first container and closed after the
//     last.
//   - spec: the complete description of a container. Its values come from the manifest
//     and from berthd's Allocate; a runtime makes no decisions.
//   - phase: a container is created, running, or exited. In a created container the
//     process exists but has not executed an instruction, so that berthd can set its
//     CPUs and limits.
//
// Invariants, which containertest checks for every runtime:
//
//   - A container's program does not run before Start.
//   - Containers continue after the end of the program that uses the runtime.
//   - An exited container is listed with its exit code until it is removed.
//   - Every call can be repeated after it failed or was interrupted.
package container
