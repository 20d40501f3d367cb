#!/usr/bin/env bash
# Format, vet, lint and dead code: Go and proto. Changes nothing.
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

# The schema as it is promised: make released writes it anew for a release.
step "buf breaking"
buf breaking --against proto/released.binpb
