#!/usr/bin/env bash
# Format, vet, lint and dead code: Go and proto. Changes nothing.
#
# Environment: BREAKING_BASE is the commit that proto/ must stay compatible
# with, default origin/main or main.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { echo "== $*"; }
buf() { go tool -modfile=hack/tools/go.mod buf "$@"; }

step "gofmt"
unformatted=$(gofmt -l .)
if [ -n "$unformatted" ]; then
	printf 'not formatted, run gofmt -w:\n%s\n' "$unformatted"
	exit 1
fi

step "go vet"
go vet ./...

step "golangci-lint"
go tool -modfile=hack/tools/lint/go.mod golangci-lint run ./...

step "dead code"
hack/dead.sh

step "buf format"
buf format --diff --exit-code

step "buf lint"
buf lint

step "buf breaking"
base=${BREAKING_BASE:-}
for ref in origin/main main; do
	if [ -z "$base" ] && git rev-parse -q --verify "$ref^{commit}" >/dev/null; then
		base=$ref
	fi
done
if [ -n "$base" ] && [ -n "$(git ls-tree --name-only "$base" proto)" ]; then
	old=$(mktemp -d)
	trap 'rm -rf "$old"' EXIT
	git archive "$base" proto buf.yaml | tar -x -C "$old"
	buf breaking --against "$old"
else
	echo "no proto/ to compare with in ${base:-any main branch}"
fi
