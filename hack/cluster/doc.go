// Package cluster runs a Kubernetes cluster of one or more nodes for tests, and for people (up.sh, down.sh): etcd,
// kube-apiserver, kube-scheduler, kube-controller-manager, kubelet and containerd, as real processes without a
// network and without a registry.
//
// Everything lies below one directory and one cgroup for each node. The programs of a node run in a mount namespace and a
// network namespace of their own, so that the fixed paths and ports of Kubernetes do not collide with
// those of the machine, and the kubelet does not change the machine's sysctls. When the test ends,
// and when it is interrupted, all processes, containers, cgroups and files are removed.
//
// Words:
//
//   - programs: the directory with the built programs. hack/cluster/test.sh builds them from their Go
//     modules (hack/tools/cluster, hack/tools/containerd).
//   - host: a node. The control plane runs on the first one.
//   - space: the two namespaces of a host, see space.go. A pair of virtual interfaces connects each further host with the first.
//
// Authorization is as on a real node: RBAC and the node authorizer. Tests act as an administrator.
package cluster
