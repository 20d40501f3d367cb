// Package criclient calls the machine's container runtime over CRI v1, the protocol of
// containerd, CRI-O and others. It lists containers and their cgroups, and updates the CPUs of
// running containers.
//
// Words:
//
//   - endpoint: the runtime's socket, a path with or without "unix://".
//   - phase: a container's state. A created container has no process; the runtime stores the
//     values that it will start with.
//   - labels: io.kubernetes.pod.uid and io.kubernetes.container.name, which identify a
//     container's owner. Kubelets and users of crictl set them. A container without them is
//     ignored.
//
// Invariants: only the cgroup of a container is stored, because it cannot change. Everything
// else is read for each call. Each call has a deadline. Only the runtime writes a container's
// cgroup. It writes all values at each update, so a second writer's values would be lost.
package criclient
