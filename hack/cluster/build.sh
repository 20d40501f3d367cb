#!/usr/bin/env bash
# Builds the programs of a cluster into a directory, from their Go modules: hack/cluster/build.sh DIR.
set -euo pipefail
mkdir -p "$1"
programs=$(realpath "$1")
cd "$(dirname "$0")/../.."

pkg-config --exists libseccomp || { echo "missing: libseccomp, for runc; apt-get install pkg-config libseccomp-dev" >&2; exit 1; }
# The module's version is the version that the programs report.
version=$(go list -C hack/tools/cluster -m -f '{{.Version}}' k8s.io/kubernetes)
go build -C hack/tools/cluster -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$programs/" tool ./etcd
go build -C hack/tools/containerd -tags seccomp -o "$programs/" tool
