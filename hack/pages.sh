#!/usr/bin/env bash
# Makes the manual pages and the completions of the programs that hack/build.sh has built, for hack/install.sh.
#
#   hack/pages.sh BIN     BIN/share/man/man1 and so on, BIN/share/bash-completion and so on
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
go=${GO:-go}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$bin/share"

# Sections 1 and 8 from the programs' commands, 5 from the page of all fields.
mkdir -p "$work/man"
for from in clients/berthctl clients/kubectl-berth server/berthd clients/nri clients/dra clients/berthlet; do
	cgo=0
	[ $from != clients/berthlet ] || cgo=1
	CGO_ENABLED=$cgo $go run -tags man ./$from manual "$work/man"
done
{
	printf '%% "BERTHD.YAML" "5" "Nov 2026" "berth" "berth"\n\n# NAME\n\nberthd.yaml - configuration of berthd\n\n'
	cat docs/configuration.md
} >"$work/berthd.yaml.md"
$go run github.com/cpuguy83/go-md2man/v2 -in "$work/berthd.yaml.md" -out "$work/man/berthd.yaml.5"
for page in "$work"/man/*; do
	install -D -m 644 "$page" "$bin/share/man/man${page##*.}/$(basename "$page")"
done

# Completions are the programs' own. Those of this machine's kind are run; they are the same for others.
native=$bin
if ! "$bin/berthctl" version --client >/dev/null 2>&1; then
	native=$work/native
	hack/build.sh "$native" berthd berthctl berth-nri berth-dra
	$go build -o "$native/berthlet" ./clients/berthlet
fi
mkdir -p "$bin/share/bash-completion/completions" "$bin/share/zsh/site-functions" "$bin/share/fish/vendor_completions.d"
for p in berthd berthctl berthlet berth-nri berth-dra; do
	"$native/$p" completion bash >"$bin/share/bash-completion/completions/$p"
	"$native/$p" completion zsh >"$bin/share/zsh/site-functions/_$p"
	"$native/$p" completion fish >"$bin/share/fish/vendor_completions.d/$p.fish"
done
