// Package cgroup computes the tree of control groups: the names, the values of each cgroup,
// and the order of operations that turn an existing tree into the desired one. The tree equals
// the kubelet's, value for value, for both cgroup versions and both drivers.
//
// Words:
//
//   - name: a cgroup's position, as the list of components from the root.
//   - driver: the form of names on disk: plain directories (cgroupfs), or systemd slices.
//   - layout: the position of the node of all pods, and of its tiers.
//   - tier: the parent of all pods of one QoS class. The tier of Guaranteed pods is the node
//     of all pods.
//   - values: the desired contents of a cgroup's files. An absent value is not written.
//   - node: a name with its desired values.
//   - snapshot: the observed values of a tree.
//   - op: one step from a snapshot to the desired nodes.
//   - port: the Tree interface, through which callers read and write a tree.
//
// Invariants: names and converted values agree with Kubernetes 1.37. A bad name is an error,
// never a panic. The ops of Diff, applied in order, satisfy the kernel's rules between parents
// and children after every step, and a second Diff returns no ops. The package does no I/O;
// the drivers in server/internal/host do.
//
// Other modules may import this package, and every release may change it.
package cgroup
