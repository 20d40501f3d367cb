#!/usr/bin/env bash
# Makes packages for Debian and for Fedora and its like, of the version in api/version/VERSION,
# in dist/. The same sources give the same bytes.
#
#   hack/package.sh [ARCH...]     amd64 and arm64 unless named
#   hack/package.sh check         looks into the packages of dist/
#
# The packages: berthd; berth-client, with berthctl and the documentation; berth-kubernetes, with
# berth-nri and berth-dra; berthlet. STAGED names a folder in which hack/stage.sh has put the files
# of each architecture already. DIST names another folder than dist, and AS_VERSION another version
# for the packages, to test upgrades.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
version=${AS_VERSION:-$(cat api/version/VERSION)}
packaged=${version/-/"~"} # that of packages: 0.2.0~rc.1 is older than 0.2.0
dist=${DIST:-dist}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1793491200)}
export SOURCE_DATE_EPOCH
names=(berthd berth-client berth-kubernetes berthlet)

# owner PATH prints the package that a file belongs to.
owner() {
	case $1 in
	usr/share/doc/*) echo berth-client ;;
	usr/share/berth/examples/*) echo berthlet ;;
	usr/share/berth/*) echo berthd ;;
	*)
		case ${1##*/} in
		berthctl* | _berthctl* | kubectl-berth*) echo berth-client ;;
		berthlet* | _berthlet*) echo berthlet ;;
		berth-nri* | _berth-nri* | berth-dra* | _berth-dra*) echo berth-kubernetes ;;
		berthd* | _berthd* | berth.conf) echo berthd ;;
		*) echo "$1 belongs to no package; name one in hack/package.sh" >&2; return 1 ;;
		esac
		;;
	esac
}

# describe NAME sets what the description of a package has.
describe() {
	# berthd.service reloads with berthctl. All are of one version, as the commit that they are built from.
	units="" depends="" recommends=systemd
	case $1 in
	berthd)
		summary="CPUs, memory, devices and cgroups for the containers of a machine" units="berthd.service berthd.socket" depends=", berth-client (= $packaged-1)"
		text="berthd decides which CPUs, memory, devices and cgroup a container gets, and applies that to the kernel. This is the job of the kubelet's managers, as a separate service."
		;;
	berth-client)
		summary="berthctl and kubectl-berth, which ask berthd, and the documentation of berth" recommends=
		text="berthctl shows what pods hold and why, tries pods and policies without an effect, reads the node of a kubelet, and tests device plugins."
		;;
	berth-kubernetes)
		summary="berth-nri and berth-dra, for nodes of Kubernetes" units=berth-nri.service depends=", berthd (= $packaged-1)"
		text="berth-nri gives the containers of a runtime what berthd has decided. berth-dra is the driver for claims on dynamic resources."
		;;
	berthlet)
		summary="berthlet, which runs the pods of a directory with berthd" units=berthlet.service depends=", berthd (= $packaged-1)"
		text="An agent that is not the kubelet: it runs pods with a runtime of its own, or with one that has the CRI."
		;;
	esac
}

# split ROOT DIR moves the files of an installation into a folder for each package.
split() {
	local path name
	while read -r path; do
		name=$(owner "$path")
		mkdir -p "$2/$name/$(dirname "$path")"
		cp -a "$1/$path" "$2/$name/$path"
	done < <(cd "$1" && find . -type f | sed 's|^\./||' | LC_ALL=C sort)
	for name in "${names[@]}"; do
		install -D -m 644 deploy/package/copyright "$2/$name/usr/share/doc/$name/copyright"
		cp -a "$1/usr/share/doc/berth/LICENSES.txt" "$2/$name/usr/share/doc/$name/"
	done
	rm "$2/berth-client/usr/share/doc/berth/LICENSES.txt"
	find "$2" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
}

# check_links DIR: every link of the documentation leads somewhere.
check_links() {
	local page link bad=0
	while read -r page; do
		while read -r link; do
			[ -e "$(dirname "$page")/$link" ] || { echo "${page#"$1"}: the link $link leads nowhere"; bad=1; }
		done < <(awk '/^```/ {code = !code} !code' "$page" | grep -oE '\]\([^)#]+' | sed 's/^](//' | grep -vE '^(https?|mailto):' || true)
	done < <(find "$1/usr/share/doc/berth" -name '*.md')
	return $bad
}

# check_deb FILE PATH... insists on files, and that they are root's alone to change.
check_deb() {
	local deb=$1 list path
	shift
	list=$(dpkg-deb -c "$deb" | awk '{print $NF}')
	for path in "$@" "./usr/share/doc/$(dpkg-deb -f "$deb" Package)/copyright"; do
		grep -qx "$path" <<<"$list" || { echo "$deb lacks $path"; return 1; }
	done
	if dpkg-deb -c "$deb" | awk '$2 != "root/root" || $1 ~ /^.....w|^........w/ {print; bad = 1} END {exit !bad}'; then
		echo "$deb has files that are not root's alone to change"
		return 1
	fi
}

check() {
	local deb rpm missing=0
	for deb in "$dist"/*_"$packaged"-1_*.deb; do
		case ${deb##*/} in
		berthd_*)
			check_deb "$deb" ./usr/bin/berthd ./etc/berth/berthd.yaml ./usr/lib/systemd/system/berthd.service ./usr/lib/systemd/system/berthd.socket \
				./usr/lib/sysusers.d/berth.conf ./usr/lib/tmpfiles.d/berth.conf ./usr/share/man/man8/berthd.8.gz ./usr/share/man/man5/berthd.yaml.5.gz \
				./usr/share/berth/monitoring/berth.rules.yaml || missing=1
			dpkg-deb --ctrl-tarfile "$deb" | tar -xO ./conffiles | grep -qx /etc/berth/berthd.yaml || { echo "$deb: the configuration is no conffile"; missing=1; }
			;;
		berth-client_*)
			check_deb "$deb" ./usr/bin/berthctl ./usr/bin/kubectl-berth ./usr/share/man/man1/berthctl-admit.1.gz ./usr/share/bash-completion/completions/berthctl \
				./usr/share/doc/berth/docs/page-now.png ./usr/share/doc/berth/proto/berth/node/v1/node.proto ./usr/share/doc/berth/berth.cdx.json || missing=1
			mkdir -p "$work/links"
			dpkg-deb -x "$deb" "$work/links"
			check_links "$work/links" || missing=1
			;;
		berth-kubernetes_*) check_deb "$deb" ./usr/bin/berth-nri ./usr/bin/berth-dra ./usr/lib/systemd/system/berth-nri.service || missing=1 ;;
		berthlet_*) check_deb "$deb" ./usr/bin/berthlet ./usr/lib/systemd/system/berthlet.service ./usr/share/berth/examples/shared.yaml || missing=1 ;;
		esac
	done
	for rpm in "$dist"/*-"$packaged"-1.*.rpm; do
		[ "$(head -c 4 "$rpm" | od -An -tx1 | tr -d ' ')" = edabeedb ] || { echo "$rpm is no package"; missing=1; }
	done
	[ "$missing" = 0 ] && ls "$dist"/*.deb "$dist"/*.rpm
}

# scripts NAME DIR writes the scripts of a package.
scripts() {
	local script
	mkdir -p "$2"
	for script in postinstall preremove postremove; do
		sed "s|@NAME@|$1|g; s|@UNITS@|$units|g" deploy/package/$script.sh >"$2/$script.sh"
	done
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
case ${1:-} in
check)
	check
	exit
	;;
scripts) # for a test
	describe "$2"
	scripts "$2" "$3"
	exit
	;;
esac
[ $# -gt 0 ] || set -- amd64 arm64
if [ -z "${STAGED:-}" ]; then
	# berthlet is built with cgo. A compiler that is missing is told before anything is built.
	for arch; do
		hack/stage.sh compiler "$arch" >/dev/null || { echo "install it, or name the architectures to make packages for: hack/package.sh $(go env GOHOSTARCH)" >&2; exit 3; }
	done
fi
mkdir -p "$dist"
$go build -modfile=hack/tools/package/go.mod -o "$work/nfpm" github.com/goreleaser/nfpm/v2/cmd/nfpm
for arch; do
	[ -n "${STAGED:-}" ] || hack/stage.sh "$arch" "$work/$arch"
	split "${STAGED:-$work}/$arch/root" "$work/split/$arch"
	for name in "${names[@]}"; do
		describe "$name"
		root=$work/split/$arch/$name
		scripts "$name" "$work/scripts/$name"
		sed "s|@NAME@|$name|; s|@ARCH@|$arch|; s|@VERSION@|$version|; s|@ROOT@|$root|; s|@MTIME@|$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)|
			s|@SUMMARY@|$summary\n  $text|; s|@SCRIPTS@|$work/scripts/$name|; s|@DEPENDS@|$depends|; s|@REQUIRES@|${depends//[()]/}|; s|@RECOMMENDS@|$recommends|" deploy/package/nfpm.yaml >"$work/nfpm.yaml"
		[ -d "$root/etc" ] || sed -i '/dst: \/etc/d' "$work/nfpm.yaml"
		for kind in deb rpm; do
			"$work/nfpm" package -f "$work/nfpm.yaml" -p "$kind" -t "$dist/"
		done
	done
done
check
