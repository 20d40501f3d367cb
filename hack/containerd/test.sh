#!/usr/bin/env bash
# The tests on a real container runtime: builds containerd, its shim and runc from
# their Go modules, and runs what asks for them. Needs root and a C compiler.
set -euo pipefail
cd "$(dirname "$0")/../.."

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
go build -C hack/tools/containerd -o "$programs/" tool
BERTH_CONTAINERD=$programs go test -count=1 -run 'Containerd' ./server/runtime ./clients/berthlet/... ./clients/nri
