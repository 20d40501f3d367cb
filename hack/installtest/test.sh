#!/usr/bin/env bash
# Installs the Debian package in a virtual machine with systemd: start, pods of berthlet, a reboot, an upgrade and a downgrade
# under load, removal, purge. PACKAGES names a folder with packages that are made already, of this version and of 99.0.0.
set -euo pipefail
cd "$(dirname "$0")/../.."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages=${PACKAGES:-$work/packages}
if [ ! -d "$packages" ]; then
	export SOURCE_DATE_EPOCH
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
	hack/stage.sh amd64 "$work/staged/amd64"
	for version in "$(cat api/version/VERSION)" 99.0.0; do
		STAGED=$work/staged DIST=$packages AS_VERSION=$version hack/package.sh amd64
	done
fi
mkdir -p "$work/image"
CGO_ENABLED=0 go build -o "$work/image/probe" ./hack/probe
debs=()
for deb in dpkg tar dash coreutils grep sed diffutils libc-bin; do debs+=(-deb "$deb"); done
go run ./hack/vm -systemd -cgroup v2 -nodes 2 -cpus 4 -memory 1536 -disk 1024 -reboots 1 -module overlay -no-skip -timeout 40m "${debs[@]}" \
	-add "$packages:/opt/packages" -env BERTH_TEST_PACKAGES=/opt/packages -add "$work/image:/opt/image" -env BERTH_TEST_IMAGE=/opt/image \
	'./hack/installtest:^TestPackage$'
