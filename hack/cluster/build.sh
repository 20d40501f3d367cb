#!/usr/bin/env bash
# Builds the programs of a cluster into a directory, from their Go modules, and kubelets of other versions:
#
#   hack/cluster/build.sh DIR [VERSION...]
#
# The kubelet of version v1.34.4 is kubelet-v1.34 there.
set -euo pipefail
mkdir -p "$1"
programs=$(realpath "$1")
kubelets=("${@:2}")
cd "$(dirname "$0")/../.."

pkg-config --exists libseccomp || { echo "missing: libseccomp, for runc; apt-get install pkg-config libseccomp-dev" >&2; exit 1; }
# The module's version is the version that the programs report.
version=$(go list -C hack/tools/cluster -m -f '{{.Version}}' k8s.io/kubernetes)
go build -C hack/tools/cluster -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$version" -o "$programs/" tool ./etcd
go build -C hack/tools/containerd -tags seccomp -o "$programs/" tool

# build_kubelet VERSION builds a kubelet with the modules that its own go.mod names. The module of Kubernetes has replaced some of them
# by directories that are not in it, and those are modules with a version of their own.
build_kubelet() {
	local source
	source=$(go mod download -json "k8s.io/kubernetes@$1" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	sed "s|=> ./staging/src/\(.*\)|=> \1 v0.${1#v1.}|" "$source/go.mod" >"$mod/go.mod"
	cat "$source/go.sum" >"$mod/go.sum"
	GOWORK=off go build -C "$source" -mod=mod -modfile="$mod/go.mod" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$1" \
		-o "$programs/kubelet-${1%.*}" ./cmd/kubelet
}
mod=$(mktemp -d)
trap 'rm -rf "$mod"' EXIT
for version in "${kubelets[@]}"; do
	build_kubelet "$version"
done
