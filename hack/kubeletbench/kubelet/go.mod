// The program is not built with this file: hack/kubeletbench writes one for each version of Kubernetes. This one keeps the
// program, which needs Kubernetes, out of berth's module.
module github.com/berthd/berth/hack/kubeletbench/kubelet

go 1.26.6
