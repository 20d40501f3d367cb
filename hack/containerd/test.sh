#!/usr/bin/env bash
# The tests on real container runtimes: builds containerd, its shim and runc from
# their Go modules, and runs what asks for them; then once more, but for NRI, with
# the containerd that is installed here, if there is one. Needs root and a C compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT

# run_with FOLDER PACKAGES... runs the tests.
run_with() {
	BERTH_CONTAINERD=$1 go test -count=1 -run 'Containerd' "${@:2}"
}

mkdir "$programs/built" "$programs/installed"
go build -C hack/tools/containerd -o "$programs/built/" tool
run_with "$programs/built" ./server/runtime ./clients/berthlet/... ./clients/nri

for name in containerd containerd-shim-runc-v2 ctr runc; do
	if ! path=$(PATH=$PATH:/usr/sbin command -v "$name"); then
		echo "not run again: $name is not installed here"
		exit
	fi
	ln -s "$path" "$programs/installed/"
done
run_with "$programs/installed" ./server/runtime ./clients/berthlet/...
