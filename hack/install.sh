#!/usr/bin/env bash
# Installs berth from what hack/build.sh and hack/pages.sh have made, and removes it. It builds nothing.
#
#   hack/install.sh BIN
#   hack/install.sh --remove   removes what was installed without DESTDIR, but the configuration
#
# Environment: PREFIX, /usr/local unless set; DESTDIR, a folder to put in front of every
# path, for packages; SYSCONFDIR, /etc unless set. Configuration that is there already stays.
set -euo pipefail
prefix=${PREFIX:-/usr/local} etc=${SYSCONFDIR:-/etc} dest=${DESTDIR:-}
list=$prefix/share/berth/installed
if [ "$1" = --remove ]; then
	[ -z "$dest" ] || { echo "DESTDIR is set: only what was installed without it can be removed; for the rest, remove $dest" >&2; exit 1; }
	[ -e "$list" ] || { echo "$list is missing: 'make install' has installed nothing below $prefix" >&2; exit 1; }
	while read -r file; do rm -f "$prefix/$file"; done <"$list"
	rm "$list"
	for folder in "$prefix/share/berth" "$prefix/share/doc/berth"; do [ ! -d "$folder" ] || find "$folder" -depth -type d -empty -delete; done
	exit
fi
for made in berthd berthctl kubectl-berth berthlet berth-nri berth-dra share; do
	[ -e "$1/$made" ] || { echo "missing: $1/$made; run 'make build' first, as the user who builds" >&2; exit 1; }
done
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put MODE FILE PATH installs a file.
put() {
	install -D -m "$1" "$2" "$dest$3"
	# Relative to the prefix: the list of a copied tree names no file of the first one.
	[ "$3" = "$etc/berth/berthd.yaml" ] || echo "${3#"$prefix"/}" >>"$work/installed"
}
# all FOLDER PATH installs the files of a folder.
all() {
	local file
	while read -r file; do put 644 "$1/$file" "$2/$file"; done < <(cd "$1" && find . -type f | sed 's|^\./||' | LC_ALL=C sort)
}
# here MODE FILE PATH installs one that names programs, with where they are here.
here() {
	sed "s|/usr/bin/|$prefix/bin/|g; s|/usr/share/|$prefix/share/|g" "$2" >"$work/here"
	put "$1" "$work/here" "$3"
}

for p in berthd berthctl kubectl-berth berthlet berth-nri berth-dra; do
	put 755 "$bin/$p" "$prefix/bin/$p"
done
for unit in deploy/systemd/*.service deploy/systemd/*.socket; do
	here 644 "$unit" "$prefix/lib/systemd/system/$(basename "$unit")"
done
all deploy/systemd/drop-ins "$prefix/share/berth/drop-ins"
all deploy/monitoring "$prefix/share/berth/monitoring"
all deploy/examples "$prefix/share/berth/examples"
put 644 deploy/sysusers.d/berth.conf "$prefix/lib/sysusers.d/berth.conf"
put 644 deploy/tmpfiles.d/berth.conf "$prefix/lib/tmpfiles.d/berth.conf"
[ -e "$dest$etc/berth/berthd.yaml" ] || put 644 deploy/berthd.yaml "$etc/berth/berthd.yaml"
all "$bin/share" "$prefix/share"

# The documentation, with the schema of the API. What it names of the sources is where the sources are.
documents=$prefix/share/doc/berth
all proto/berth "$documents/proto/berth"
sources=https://github.com/berthd/berth/blob/main
for file in *.md docs/*.md; do
	up=""
	[ "$file" = "${file##*/}" ] || up=../
	sed -E "s#\]\($up(api|clients|deploy|hack|managers|server|\.github|go\.mod|Makefile)([/)\#])#]($sources/\1\2#g" "$file" >"$work/page"
	put 644 "$work/page" "$documents/$file"
done
for file in LICENSE docs/*.png; do put 644 "$file" "$documents/$file"; done
if [ -e "$bin/berth.cdx.json" ]; then
	put 644 "$bin/berth.cdx.json" "$documents/berth.cdx.json"
	put 644 "$bin/LICENSES.txt" "$documents/LICENSES.txt"
fi
if [ -z "$dest" ]; then
	[ ! -e "$list" ] || cat "$list" >>"$work/installed" # an older version may have had more files
	LC_ALL=C sort -u -o "$work/installed" "$work/installed"
	install -m 644 "$work/installed" "$list"
	echo "installed; now: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && systemctl enable --now berthd"
fi
