#!/usr/bin/env bash
# Runs every fuzz target of the module, one after the other.
#
# Usage: hack/fuzz.sh [TIME]   TIME for each target, default 10s.
set -euo pipefail
cd "$(dirname "$0")/.."

time=${1:-10s}
targets=$(git grep --untracked -hoE '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go' | wc -l)
[ "$targets" -gt 0 ] || { echo "fuzz.sh: no fuzz target found" >&2; exit 1; }

# fuzz NAME DIR fuzzes a target. The Go of before 1.27 can end a run with this error when its time is over, without a failing
# input (golang/go#75804): then the target is run again.
fuzz() {
	local out
	for _ in 1 2 3; do
		out=$(go test -run '^$' -fuzz "^$1\$" -fuzztime "$time" "$2" </dev/null 2>&1) && { echo "$out"; return; }
		echo "$out"
		grep -qx '    context deadline exceeded' <<<"$out" && ! grep -q 'Failing input written to' <<<"$out" || return 1
	done
	return 1
}

failed=()
while IFS=: read -r file line; do
	name=${line#func }
	name=${name%(}
	echo "== $name in $(dirname "$file")"
	fuzz "$name" "./$(dirname "$file")" || failed+=("$name in $(dirname "$file")")
done < <(git grep --untracked -oE '^func Fuzz[A-Za-z0-9_]*\(' -- '*_test.go')
if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}"
	exit 1
fi
echo "$targets targets run for $time each"
