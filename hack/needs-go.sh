#!/usr/bin/env bash
# Ends with a clear error where Go is missing, or older than go.mod asks for and cannot fetch what it asks for. What a Go
# before 1.21 says of go.mod is that it cannot be read; from then on Go fetches the version that it needs, if it may.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go} # with arguments, as in "nice go"
case ${go%% *} in /*) ;; */*) go=$PWD/$go ;; esac
need=$(awk '$1 == "go" {print $2}' go.mod)
help="get it from https://go.dev/dl/; GO names another program than go"
command -v "${go%% *}" >/dev/null || { echo "missing: Go $need or later; $help" >&2; exit 3; }
# Outside of the repository, where an old version reads no go.mod.
have=$(cd / && $go env GOVERSION 2>/dev/null || true)
have=${have#go}
if [ "$(printf '%s\n' 1.21 "${have:-1}" | sort -V | head -1)" != 1.21 ]; then
	# Before 1.16 there was no GOVERSION.
	echo "Go is too old: $(cd / && $go version) ($go), and go.mod needs $need; $help" >&2
	exit 3
fi
if ! $go list -m >/dev/null; then
	echo "Go $have is not what go.mod needs, $need, and does not get it (GOTOOLCHAIN); $help" >&2
	exit 3
fi
