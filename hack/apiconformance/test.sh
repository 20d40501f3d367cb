#!/usr/bin/env bash
# Runs the clients of others against berthd: the documents' lines with the pinned grpcurl, and
# clients in Python with messages that protoc generates. Debian has the packages (see below);
# BERTH_PYTHON names another Python that has grpc.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
go build -modfile=hack/tools/go.mod -o "$folder/grpcurl" github.com/fullstorydev/grpcurl/cmd/grpcurl

python=${BERTH_PYTHON:-/usr/bin/python3} packages=(python3-grpcio python3-protobuf protobuf-compiler protobuf-compiler-grpc libprotobuf-dev)
if ! "$python" -c 'import grpc, google.protobuf' 2>/dev/null || ! command -v protoc >/dev/null || ! command -v grpc_python_plugin >/dev/null; then
	if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
		apt-get -qq update || true # what is there may do
		DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}"
	else
		echo "missing: a Python with grpc, or protoc; install ${packages[*]}" >&2
		exit 1
	fi
fi
BERTH_GRPCURL=$folder/grpcurl BERTH_PYTHON=$python go test -count=1 -v -run '^Test(Grpcurl|Python|PythonAgent)$' ./hack/apiconformance
