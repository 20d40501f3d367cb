#!/usr/bin/env bash
# Lists what has a newer release: all modules that the programs are made of, and the tools. A line
# is "FILE: MODULE HAVE -> NEWEST". The exit status is 1 if there is one, so that a schedule can
# look at it; it is 2 if there is none but a lookup failed. hack/outdated.txt has the releases that are
# not taken.
#
#   hack/outdated.sh                   lists them
#   hack/outdated.sh update [MODULE...] takes them, or only those that are named, and writes what the programs
#                                      are made of into the first section of CHANGELOG.md
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

# paths prints the values of "Path" in a list of `go mod edit -json`.
paths() { awk -F '"' -v list="\"$2\": [" 'index($0, list) {on=1} /^\t\]/ {on=0} on && $2 == "Path" {print $4}' <<<"$1"; }

format='{{if .Error}}! {{.Path}}: {{.Error.Err}}
{{else if .Update}}{{.Path}} {{.Version}}={{.Update.Version}} {{.Indirect}}{{end}}'
case ${1:-} in
"" | update) ;;
*)
	echo "usage: hack/outdated.sh [update [MODULE...]]" >&2
	exit 2
	;;
esac
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

# note MODULE HAVE NEWEST writes a line into the first section of CHANGELOG.md. A module that has one keeps
# the version that it says it had.
note() {
	local text
	text=$(awk -v module="- \`$1\` " -v have="$2" -v newest="$3" -v title="**Newer modules.**" '
		{ line[NR] = $0 }
		/^## / { if (!first) first = NR; else if (!second) second = NR }
		END {
			last = second ? second - 1 : NR
			while (line[last] == "") last--
			for (i = first; i <= last; i++) {
				if (line[i] == title) titled = 1
				if (index(line[i], module) != 1) continue
				sub(/.* and was /, "", line[i])
				line[i] = module "is " newest " and was " line[i]
				done = 1
			}
			for (i = 1; i <= NR; i++) {
				print line[i]
				if (i != last || done) continue
				if (!titled) print "\n" title "\n"
				print module "is " newest " and was " have
			}
		}' CHANGELOG.md)
	printf '%s\n' "$text" >CHANGELOG.md
}

if [ "${1:-}" = update ]; then
	shift
	version=$(cat api/version/VERSION)
	if ! grep -q "^## $version" CHANGELOG.md || [ -n "$(git tag --list "v$version")" ]; then
		echo "the changelog needs a section for the next release: raise api/version/VERSION, and add its section to CHANGELOG.md" >&2
		exit 2
	fi
	for wanted; do
		grep -qF ": $wanted " <<<"$all" || { echo "$wanted: there is no newer release, or no module of this name in a go.mod; hack/outdated.sh lists them" >&2; exit 2; }
	done
	taken=0
	while read -r mod path have _ newest; do
		[ -n "$mod" ] || continue
		[ $# = 0 ] || [[ " $* " == *" $path "* ]] || continue
		mod=${mod%:}
		$go -C "$(dirname "$mod")" get "$path@$newest" || { echo "$mod: $path $newest cannot be taken; say why in hack/outdated.txt, or name the modules to take" >&2; exit 2; }
		$go -C "$(dirname "$mod")" mod tidy
		[ "$mod" != go.mod ] || note "$path" "$have" "$newest"
		taken=$((taken + 1))
	done <<<"$all"
	echo "modules taken: $taken; now: make check && make test"
	exit "$failed"
fi
if [ -z "$all" ]; then
	[ "$failed" != 0 ] || echo "everything is current"
	exit "$failed"
fi
printf '%s' "$all"
exit 1
