#!/usr/bin/env bash
# Builds berth for one architecture and arranges what is installed, for packages, images and
# tarballs.
#
#   hack/stage.sh ARCH DIR     DIR/bin: the programs, SBOM and licences; DIR/root: as make install puts them
#   hack/stage.sh compiler ARCH    prints the C compiler for ARCH
#
# Both exit with 3 if there is no C compiler for ARCH. CC_ARM64 and CC_AMD64 name other cross
# compilers than Debian's. SOURCE_DATE_EPOCH is the time of all files.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}

# compiler ARCH prints the C compiler for an architecture.
compiler() {
	local cc=${CC:-gcc}
	if [ "$1" != "$($go env GOHOSTARCH)" ]; then
		case $1 in
		arm64) cc=${CC_ARM64:-aarch64-linux-gnu-gcc} ;;
		amd64) cc=${CC_AMD64:-x86_64-linux-gnu-gcc} ;;
		*) echo "architecture $1: expected amd64 or arm64" >&2; return 2 ;;
		esac
	fi
	command -v "$cc" >/dev/null || { echo "missing: $cc, a C compiler for $1 (Debian: gcc, gcc-aarch64-linux-gnu, gcc-x86-64-linux-gnu)" >&2; return 3; }
	echo "$cc"
}

if [ "$1" = compiler ]; then
	compiler "$2"
	exit
fi
arch=$1
CC=$(compiler "$arch")
mkdir -p "$2"
dir=$(cd "$2" && pwd)
export CC
GOARCH=$arch hack/build.sh "$dir/bin"
hack/supply.sh sbom "$dir/bin"
unset CC
hack/pages.sh "$dir/bin"
DESTDIR=$dir/root PREFIX=/usr SYSCONFDIR=/etc hack/install.sh "$dir/bin"
find "$dir/root/usr/share/man" -type f -exec gzip -9n {} +
find "$dir/root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
