#!/usr/bin/env bash
# Verifies what is checked in: generated code and go.mod are up to date, the
# architecture rules and the limits hold, the pure part builds for other systems, all builds without a C compiler,
# and commit subjects are short.
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
cmp docs/api-reference.md "$fresh/docs/api-reference.md" || { echo "docs/api-reference.md is out of date, run make generate"; exit 1; }

step "go.mod"
go mod tidy -diff || { echo "run go mod tidy"; exit 1; }

step "architecture rules"
go test ./hack/archtest

step "limits of packages, types and lines"
go run ./hack/limits

step "scripts of the page"
hack/page.sh

# vet compiles the tests too. One system after another: each build uses every core.
step "builds for other systems"
portable=(./managers/... ./api/... ./clients/hintprovider/...)
export CGO_ENABLED=0
GOOS=darwin GOARCH=arm64 go vet -buildvcs=false "${portable[@]}"
GOOS=windows GOARCH=amd64 go vet -buildvcs=false "${portable[@]}"
GOOS=js GOARCH=wasm go build -buildvcs=false "${portable[@]}"

# All but the container runtime inside of berthlet, which then says what is missing.
step "builds without a C compiler"
go build -buildvcs=false -o /dev/null ./server/... ./clients/...

# A copy without the history has nothing to look at.
step "commit subjects"
since=$(cat .ci/subjects-since)
if git cat-file -e "$since^{commit}" 2>/dev/null; then
	long=$(git log --format='%h %s' "$since..HEAD" | awk '{ n = length($0) - length($1) - 1 } n > 72 { print n " characters: " $0 }')
	if [ -n "$long" ]; then
		echo "$long"
		echo "a subject has at most 72 characters; the body has room for the rest"
		exit 1
	fi
else
	echo "skipped: this copy does not have commit $since"
fi
