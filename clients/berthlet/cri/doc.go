// Package cri implements container.Runtime with a container runtime of the machine, such as
// containerd or CRI-O, over CRI v1.
//
// Words:
//
//   - sandbox: the runtime's object for a pod: its namespaces, its directory of
//     logs, its cgroup. A pod has one that is ready. If it breaks, a new one with a
//     higher attempt replaces it.
//   - owner: a label on all objects of this package, with the name of this
//     berthlet. Objects of other programs, such as a kubelet, are ignored.
//   - poll: the states of all containers are read every second, to detect the end of
//     a container. Kubelets do the same. A container whose state the runtime does
//     not know is ended.
//
// Differences from the built-in runtime:
//
//   - The runtime assigns ids.
//   - A created container has no process, so berthd cannot place it before the start.
//     Berthd needs the runtime's endpoint too, to set CPU sets.
//   - A container that is terminated before its start counts as exited, although the
//     runtime keeps it until it is removed.
//
// Invariants: data that must outlive the program is in labels and annotations, as in the kubelet.
// Values come only from the spec.
package cri
