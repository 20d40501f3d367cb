#!/usr/bin/env bash
# Verifies what is checked in: generated code and go.mod are up to date, the
# house rules hold, the pure part builds for other systems. Changes nothing.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { echo "== $*"; }
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

step "generated code"
hack/gen.sh "$fresh/api"
old=$(cd api && find . -name '*.pb.go' | sort)
new=$(cd "$fresh/api" && find . -name '*.pb.go' | sort)
diff <(echo "$old") <(echo "$new") || { echo "api/ is out of date, run make generate"; exit 1; }
for f in $new; do
	cmp "api/$f" "$fresh/api/$f" || { echo "api/ is out of date, run make generate"; exit 1; }
done

step "go.mod"
go mod tidy -diff || { echo "run go mod tidy"; exit 1; }

step "house rules and builds for other systems"
go test ./hack/house
