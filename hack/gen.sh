#!/usr/bin/env bash
# Generates api/ and docs/api-reference.md from proto/ with the plugins pinned in hack/tools.
# A generated file whose proto file is gone is removed. A failure changes nothing.
#
# Usage: hack/gen.sh [OUT]   OUT is the folder to generate into, default api; docs is beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-api}
docs=$(dirname "$out")/docs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go tool -modfile=hack/tools/go.mod buf generate -o "$work"
go tool -modfile=hack/tools/go.mod buf build -o "$work/proto.binpb"
go run -buildvcs=false ./hack/apidoc <"$work/proto.binpb" >"$work/api-reference.md"

mkdir -p "$out" "$docs"
find "$out" -name '*.pb.go' -delete
cp -R "$work/api/." "$out"
cp "$work/api-reference.md" "$docs"
