#!/usr/bin/env bash
# Lists what has a newer release: all modules that the programs are made of, and the tools. A line
# is "FILE: MODULE HAVE -> NEWEST". The exit status is 1 if there is one, so that a schedule can
# look at it; it is 2 if there is none but a lookup failed. hack/outdated.txt has the releases that are
# not taken.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

# paths prints the values of "Path" in a list of `go mod edit -json`.
paths() { awk -F '"' -v list="\"$2\": [" 'index($0, list) {on=1} /^\t\]/ {on=0} on && $2 == "Path" {print $4}' <<<"$1"; }

format='{{if .Error}}! {{.Path}}: {{.Error.Err}}
{{else if .Update}}{{.Path}} {{.Version}}={{.Update.Version}} {{.Indirect}}{{end}}'
own_module=$($go list -m) # which other modules of this repository replace by its directory
all=
failed=0
for mod in $(git ls-files go.mod '**/go.mod'); do
	dir=$(dirname "$mod")
	text=$($go -C "$dir" mod edit -json)
	modules=$(paths "$text" Require | grep -vx "$own_module" || true)
	tools=$(paths "$text" Tool)
	[ -n "$modules" ] || continue
	# shellcheck disable=SC2086 # one word for each module
	updates=$($go -C "$dir" list -mod=mod -m -u -e -f "$format" $modules)
	if failures=$(grep '^! ' <<<"$updates"); then
		sed "s|^!|$mod: the lookup failed:|" <<<"$failures" >&2
		failed=2
	fi
	while read -r path change kind; do
		[[ $change == *=* ]] || continue # what is written of a failure
		# Of the tools' modules only what go.mod asks for by itself: the rest is the tools' choice.
		if [ "$mod" != go.mod ] && [ "$kind" = true ]; then
			own=
			for t in $tools; do case $t/ in "$path"/*) own=1 ;; esac; done
			[ -n "$own" ] || continue
		fi
		! grep -qF "$mod $path ${change#*=} " hack/outdated.txt || continue
		all+="$mod: $path ${change//=/ -> }"$'\n'
	done <<<"$updates"
done
if [ -z "$all" ]; then
	[ "$failed" != 0 ] || echo "everything is current"
	exit "$failed"
fi
printf '%s' "$all"
exit 1
