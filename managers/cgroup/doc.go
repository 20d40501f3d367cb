// Package cgroup knows how the tree of control groups must look: its names, the
// values of its nodes, and in which order an existing tree becomes the wanted
// one. It makes the kubelet's tree, value for value, for both versions of the
// kernel's interface and for both drivers.
//
// Words:
//
//   - name: the place of a cgroup as a list of components from the root.
//   - driver: how names are spelt on disk, as plain directories (cgroupfs) or as
//     systemd slices.
//   - layout: where the node that holds all pods lies, and its tiers.
//   - tier: the parent of all pods of one QoS class; the tier of Guaranteed pods
//     is the node of all pods itself.
//   - values: what a cgroup is to hold. A value that is absent is left as it is.
//   - node: a name with the values wanted there.
//   - snapshot: what a tree was seen to hold.
//   - op: one step from a snapshot towards the wanted nodes.
//   - port: the Tree interface, by which a tree is reached.
//
// Invariants: conversions and names agree with Kubernetes 1.36; a bad name is an
// error, never a panic; applying the ops of Diff in their order breaks no rule
// of the kernel between parents and children at any step, and a second Diff
// finds nothing to do. The package itself touches no cgroup: drivers under
// server/host do.
package cgroup
