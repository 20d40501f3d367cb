#!/usr/bin/env bash
# Builds the scheduler with the plugin NodeResourceTopologyMatch from the module of scheduler-plugins:
#
#   hack/cluster/scheduler.sh FILE
set -euo pipefail
file=$(realpath -m "$1")

source=$(go mod download -json sigs.k8s.io/scheduler-plugins@v0.34.7 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
mod=$(mktemp -d)
trap 'rm -rf "$mod"' EXIT
# The module proxy lacks parts of Kubernetes 1.34.7, which its go.mod names; it has 1.34.8 whole.
sed -E '/k8s\.io\//{s/ v0\.34\.7/ v0.34.8/g; s/ v1\.34\.7/ v1.34.8/}' "$source/go.mod" >"$mod/go.mod"
cat "$source/go.sum" >"$mod/go.sum"
GOWORK=off go build -C "$source" -mod=mod -modfile="$mod/go.mod" -ldflags "-s -w" -o "$file" ./cmd/scheduler
