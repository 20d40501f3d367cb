#!/usr/bin/env bash
# Makes packages for Debian and for Fedora and its like, of the version in api/version/VERSION,
# in dist/. The same sources give the same bytes.
#
#   hack/package.sh [ARCH...]     amd64 and arm64 unless named
#   hack/package.sh check         looks into the packages of dist/
#
# berthlet is built with cgo: for another kind of machine than this one that takes a cross
# compiler, such as Debian's gcc-aarch64-linux-gnu. Without one the packages of that
# architecture are left out, with a message. STAGED names a folder in which hack/stage.sh has
# put the files of each architecture already. DIST names another folder than dist, and AS_VERSION
# another version for the package, to test upgrades.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
version=${AS_VERSION:-$(cat api/version/VERSION)}
dist=${DIST:-dist}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1793491200)}
export SOURCE_DATE_EPOCH

check() {
	local deb rpm list missing=0 path
	for deb in "$dist"/berth_"$version"*.deb; do
		list=$(dpkg-deb -c "$deb" | awk '{print $NF}')
		for path in ./usr/bin/berthd ./usr/bin/berthctl ./usr/bin/berthlet ./usr/bin/berth-nri ./usr/bin/berth-dra ./etc/berth/berthd.yaml \
			./usr/lib/systemd/system/berthd.service ./usr/lib/systemd/system/berthd.socket ./usr/lib/sysusers.d/berth.conf ./usr/lib/tmpfiles.d/berth.conf \
			./usr/share/man/man8/berthd.8.gz ./usr/share/man/man1/berthctl-admit.1.gz ./usr/share/man/man5/berthd.yaml.5.gz \
			./usr/share/bash-completion/completions/berthctl ./usr/share/berth/monitoring/berth.rules.yaml ./usr/share/doc/berth/LICENSES.txt ./usr/share/doc/berth/berth.cdx.json; do
			grep -qx "$path" <<<"$list" || { echo "$deb lacks $path"; missing=1; }
		done
		dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles | grep -qx /etc/berth/berthd.yaml || { echo "$deb: the configuration is no conffile"; missing=1; }
		if dpkg-deb -c "$deb" | awk '$2 != "root/root" || $1 ~ /^.....w|^........w/ {print; bad = 1} END {exit !bad}'; then
			echo "$deb has files that are not root's alone to change"
			missing=1
		fi
	done
	for rpm in "$dist"/berth-"$version"*.rpm; do
		[ "$(head -c 4 "$rpm" | od -An -tx1 | tr -d ' ')" = edabeedb ] || { echo "$rpm is no package"; missing=1; }
	done
	[ "$missing" = 0 ] && ls "$dist"/*.deb "$dist"/*.rpm
}

if [ "${1:-}" = check ]; then
	check
	exit
fi
[ $# -gt 0 ] || set -- amd64 arm64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$dist"
$go build -modfile=hack/tools/package/go.mod -o "$work/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
for arch; do
	root=${STAGED:-$work}/$arch/root
	if [ -z "${STAGED:-}" ]; then
		status=0
		hack/stage.sh "$arch" "$work/$arch" || status=$?
		[ "$status" != 3 ] || { echo "skipped: packages for $arch"; continue; }
		[ "$status" = 0 ] || exit "$status"
	fi
	sed "s|@ARCH@|$arch|; s|@VERSION@|$version|; s|@ROOT@|$root|; s|@MTIME@|$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)|" deploy/package/nfpm.yaml >"$work/nfpm.yaml"
	for kind in deb rpm; do
		"$work/nfpm" package -f "$work/nfpm.yaml" -p "$kind" -t "$dist/"
	done
done
check
