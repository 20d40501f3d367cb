#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other.
#
# Usage: hack/fuzz.sh [TIME]   TIME for each target, default 10s.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-10s}
targets=$(git grep --untracked -hoE '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go' | wc -l)
[ "$targets" -gt 0 ] || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }

git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go' | while IFS=: read -r file line; do
	name=${line#func }
	echo "== ${name%(} in $(dirname "$file")"
	go test -run '^$' -fuzz "^${name%(}\$" -fuzztime "$time" "./$(dirname "$file")" </dev/null
done
echo "$targets targets run for $time each"
