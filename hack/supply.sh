#!/usr/bin/env bash
# What berth's programs are made of.
#
#   hack/supply.sh check     the licences of all modules against hack/licences.txt, and known
#                            vulnerabilities where their database can be reached
#   hack/supply.sh sbom DIR  a bill of materials (berth.cdx.json) and all licences
#                            (LICENSES.txt) of the programs in DIR, into DIR; PROGRAMS names
#                            fewer than all
#   hack/supply.sh same      builds the programs twice, in two folders and with two caches,
#                            and compares them byte by byte
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
programs=${PROGRAMS:-berthd berthctl kubectl-berth berth-nri berth-dra berthlet}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

supply() { "$work/supply" "$@"; }
tool() { $go build -C hack/tools/supply -o "$work/supply" .; }
# plain builds the programs for looking into them: what they are made of does not depend on
# how they are linked, and this is what tests have compiled already.
plain() {
	$go build -o "$work/" ./server/berthd ./clients/berthctl ./clients/kubectl-berth ./clients/berthlet
	$go build -o "$work/berth-nri" ./clients/nri
	$go build -o "$work/berth-dra" ./clients/dra
}
in_dir() { for p in $programs; do echo "$1/$p"; done; }

# vulnerabilities looks for known ones. A database that cannot be reached is told, and passes.
vulnerabilities() {
	local status=0 p
	$go build -modfile=hack/tools/vuln/go.mod -o "$work/govulncheck" golang.org/x/vuln/cmd/govulncheck
	for p in $programs; do
		status=0
		"$work/govulncheck" -mode binary "$work/$p" >"$work/said" 2>&1 || status=$?
		if [ "$status" = 1 ] && grep -q 'fetching vulnerabilities: ' "$work/said"; then
			echo "skipped: the database of vulnerabilities cannot be reached (GOVULNDB names another one): $(tail -1 "$work/said")"
			return
		fi
		if [ "$status" != 0 ]; then
			echo "$p:"
			cat "$work/said"
			return 1
		fi
	done
	echo "no known vulnerability in $programs"
}

case ${1:-} in
check)
	echo "== licences"
	for t in supply image publish; do
		$go test -C hack/tools/$t . >"$work/said" || { cat "$work/said"; exit 1; }
	done
	tool
	plain
	supply licences -accept hack/licences.txt $(in_dir "$work")
	echo "== vulnerabilities"
	vulnerabilities
	;;
sbom)
	tool
	# The list is that of all programs together: some of them do not have each licence.
	accept="-accept hack/licences.txt"
	[ -z "${PROGRAMS:-}" ] || accept=
	supply licences $accept -bundle "$2/LICENSES.txt" $(in_dir "$2")
	supply sbom -o "$2/berth.cdx.json" $(in_dir "$2")
	;;
same)
	for n in 1 2; do
		mkdir -p "$work/$n/elsewhere$n"
		tar -c --exclude=./.git --exclude=./bin --exclude=./dist . | tar -x -C "$work/$n/elsewhere$n"
		GOCACHE="$work/$n/cache" "$work/$n/elsewhere$n/hack/build.sh" "$work/$n/out"
	done
	for p in $programs; do
		cmp "$work/1/out/$p" "$work/2/out/$p" || { echo "$p: two builds of the same sources differ"; exit 1; }
		sha256sum "$work/1/out/$p" | sed "s|$work/1/out/||"
	done
	echo "built twice, the same"
	;;
*)
	sed -n '2,11p' "$0"
	exit 2
	;;
esac
