#!/usr/bin/env bash
# Makes OCI images of berthd, berth-nri, berth-dra and berthlet in dist/, from static binaries and without
# a container engine: dist/PROGRAM-VERSION.oci.tar, with one image for each architecture. The
# same sources give the same bytes.
#
#   hack/image.sh [ARCH...]     amd64 and arm64 unless named
#
# IMAGE_REPOSITORY is in front of the names (localhost/berth). An image has the program, the
# SBOM and the licences, and nothing else; berthd's also has berthctl. Without a cross compiler for an architecture
# berthlet cannot be built for it: then that architecture is left out of all images, with a
# message; with STRICT=1 that is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
version=$(cat api/version/VERSION)
repository=${IMAGE_REPOSITORY:-localhost/berth}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1793491200)}
revision=$(git rev-parse -q --verify HEAD 2>/dev/null || echo unknown)
[ $# -gt 0 ] || set -- amd64 arm64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p dist
$go build -C hack/tools/image -o "$work/image" .

declare -A roots
for arch; do
	if ! cc=$(hack/stage.sh compiler "$arch"); then
		[ -z "${STRICT:-}" ] || exit 1
		echo "skipped: images for $arch"
		continue
	fi
	CC=$cc GOARCH=$arch BUILDMODE=exe hack/build.sh "$work/$arch" berthd berth-nri berth-dra berthlet berthctl
	for program in berthd berth-nri berth-dra berthlet berthctl; do
		if command -v readelf >/dev/null && readelf -l "$work/$arch/$program" | grep -q INTERP; then
			echo "$arch/$program is not static" >&2
			exit 1
		fi
	done
	for program in berthd berth-nri berth-dra berthlet; do
		root=$work/root/$program/$arch
		programs=$program
		[ "$program" != berthd ] || programs="berthd berthctl" # for kubectl exec
		for p in $programs; do install -D -m 755 "$work/$arch/$p" "$root/usr/bin/$p"; done
		PROGRAMS=$programs hack/supply.sh sbom "$work/$arch" >/dev/null
		install -D -m 644 -t "$root/usr/share/doc/berth" "$work/$arch/berth.cdx.json" "$work/$arch/LICENSES.txt"
		roots[$program]+=" $arch=$root"
	done
done
[ ${#roots[@]} -gt 0 ] || { echo "no image can be built here" >&2; exit 1; }
declare -A about=(
	[berthd]="gives containers their CPUs, memory, devices and cgroups"
	[berth-nri]="places the containers of a Kubernetes node with berthd, as a plugin of the container runtime"
	[berth-dra]="publishes NUMA nodes to a Kubernetes scheduler, and prepares claims on their CPUs and memory with berthd"
	[berthlet]="runs the pods of a folder of manifests with berthd"
)
for program in berthd berth-nri berth-dra berthlet; do
	file=dist/$program-$version.oci.tar
	# shellcheck disable=SC2086 # one word for each architecture
	"$work/image" -o "$file" -name "$repository/$program:$version" -program "$program" -created "$SOURCE_DATE_EPOCH" \
		-label org.opencontainers.image.title="$program" \
		-label org.opencontainers.image.description="${about[$program]}" \
		-label org.opencontainers.image.version="$version" \
		-label org.opencontainers.image.revision="$revision" \
		-label org.opencontainers.image.licenses=Apache-2.0 \
		-label org.opencontainers.image.source=https://github.com/berthd/berth \
		${roots[$program]}
	echo "$file"
done
