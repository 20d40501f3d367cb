#!/usr/bin/env bash
# Generates api/ and docs/api-reference.md from proto/ with the plugins pinned in hack/tools.
# A generated file whose proto file is gone is removed.
#
# Usage: hack/gen.sh [OUT]   OUT is the folder to generate into, default api; docs is beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-api}
mkdir -p "$out"
find "$out" -name '*.pb.go' -delete
# buf.gen.yaml names api as the output folder below the base that -o gives.
base=$(dirname "$out")
if [ "$(basename "$out")" != api ]; then
	echo "gen.sh: the output folder must be called api, got $out" >&2
	exit 2
fi
go tool -modfile=hack/tools/go.mod buf generate -o "$base"
mkdir -p "$base/docs"
go tool -modfile=hack/tools/go.mod buf build -o - | go run -buildvcs=false ./hack/apidoc >"$base/docs/api-reference.md.new"
mv "$base/docs/api-reference.md.new" "$base/docs/api-reference.md"
