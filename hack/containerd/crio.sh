#!/usr/bin/env bash
# Builds CRI-O from its Go module into a directory, with what it needs beside Debian's conmon:
#
#   hack/containerd/crio.sh DIR
#
# Tests use it in place of containerd where BERTH_CONTAINERD names the directory. Needs a C compiler, pkg-config, libseccomp with its header, and
# for the tests conmon and skopeo.
set -euo pipefail
mkdir -p "$1"
programs=$(realpath "$1")
cd "$(dirname "$0")/../.."

for program in conmon skopeo; do
	command -v "$program" >/dev/null || { echo "missing: $program, for CRI-O; apt-get install conmon skopeo" >&2; exit 1; }
done
pkg-config --exists libseccomp || { echo "missing: libseccomp, for runc; apt-get install pkg-config libseccomp-dev" >&2; exit 1; }
# The newest release that the module proxy has.
source=$(go mod download -json github.com/cri-o/cri-o@v1.36.3 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
mod=$(mktemp -d)
trap 'rm -rf "$mod"' EXIT
cat "$source/go.mod" >"$mod/go.mod"
cat "$source/go.sum" >"$mod/go.sum"
GOWORK=off go build -C "$source" -mod=mod -modfile="$mod/go.mod" -tags "containers_image_openpgp exclude_graphdriver_btrfs seccomp" -ldflags "-s -w" \
	-o "$programs/" ./cmd/crio
cc -O2 -D 'VERSION="1.36.3"' -o "$programs/pinns" "$source"/pinns/src/*.c
go build -C hack/tools/containerd -tags seccomp -o "$programs/" github.com/opencontainers/runc
