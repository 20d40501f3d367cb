#!/usr/bin/env bash
# Ends with a clear error where Go is missing, or older than go.mod asks for. Go from 1.21 on fetches the version
# that it needs; what an older one says of go.mod is that it cannot be read.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
need=$(awk '$1 == "go" {print $2}' go.mod)
help="get it from https://go.dev/dl/; GO names another program than go"
command -v "$go" >/dev/null || { echo "missing: Go $need or later; $help" >&2; exit 3; }
# Outside of the repository, where an old version reads no go.mod.
have=$(cd / && "$go" env GOVERSION 2>/dev/null || true)
have=${have#go}
oldest=$(printf '%s\n' 1.21 "${have:-1}" | sort -V | head -1)
if [ "$oldest" != 1.21 ]; then
	# Before 1.16 there was no GOVERSION.
	echo "Go is too old: $("$go" version) at $(command -v "$go"), and go.mod needs $need; $help" >&2
	exit 3
fi
# The version that go.mod needs is used or fetched.
"$go" version >/dev/null || { echo "Go $have cannot get Go $need, which go.mod needs (GOTOOLCHAIN=$("$go" env GOTOOLCHAIN)); $help" >&2; exit 3; }
