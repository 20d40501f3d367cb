#!/usr/bin/env bash
# The tests on a real Kubernetes cluster of one node: builds etcd, the programs of Kubernetes, containerd,
# its shim and runc from their Go modules, and runs the tests that need them. The first build takes about
# fifteen minutes on two cores. Needs root, a C compiler, pkg-config and libseccomp with its header.
set -euo pipefail
cd "$(dirname "$0")/../.."

pkg-config --exists libseccomp || { echo "missing: libseccomp, for runc; apt-get install pkg-config libseccomp-dev" >&2; exit 1; }
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
# The module's version is the version that the programs report.
version=$(go list -C hack/tools/cluster -m -f '{{.Version}}' k8s.io/kubernetes)
go build -C hack/tools/cluster -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$programs/" tool ./etcd ./dra
go build -C hack/tools/containerd -tags seccomp -o "$programs/" tool
export BERTH_CLUSTER=$programs BERTH_CONTAINERD=$programs
go test -count=1 -timeout 1h -v -run '^TestCluster' ./hack/cluster ./clients/nri
# Pods that come and go beside pods with CPUs of their own, while everything is killed.
BERTH_STRESS=${BERTH_STRESS:-150} go test -count=1 -timeout 1h -v -run '^TestStressCluster$' ./clients/nri
