// Package runtime reaches the container runtime of the machine over CRI v1, the
// protocol that containerd, CRI-O and others serve: which containers there are,
// where their cgroups lie, and other CPUs for them while they run.
//
// Words:
//
//   - endpoint: the runtime's socket, a path with or without "unix://".
//   - phase: how far a container is. One that is created has no process; the
//     runtime keeps what it is to start with.
//   - labels: io.kubernetes.pod.uid and io.kubernetes.container.name, by which a
//     container says whose it is, as kubelets and crictl users write them. What
//     has none is nobody's here.
//
// Invariants: nothing is remembered that can change: where the cgroup of a
// container lies is asked once, everything else each time. No call takes longer
// than its deadline. The runtime writes the container's cgroup, berthd never does:
// two writers would overwrite each other (the runtime writes all values whenever
// it is asked for one).
package runtime
