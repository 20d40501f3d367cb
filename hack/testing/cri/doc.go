// Package cri is a container runtime for tests, in memory: it serves CRI v1 on a
// real socket, and its containers are entries in a map.
//
// It behaves as containerd does where berth depends on that: names are reserved, a
// created container takes other values with it into its start, StopContainer sends
// the signal once and waits, a container's cgroup is in the verbose status.
// The suites that hold it against that (clients/berthlet/container/containertest
// and server/internal/runtime/criclient) run against a real containerd too, in hack/testing/containerd.
//
// Words:
//
//   - program: what a container does, by the words of hack/probe: "exit N" ends at
//     once, "stubborn" ignores the signal, everything else runs until the test ends it.
//   - kernel: receives the changes of containers, so that a test can keep
//     cgroups for them.
//
// Not here: streams, exec, pulling of images, networks.
package cri
