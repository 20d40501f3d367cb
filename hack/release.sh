#!/usr/bin/env bash
# Makes a release of the version in api/version/VERSION in dist/: deb and rpm packages, container
# images, the Helm chart, tarballs of the programs and of the sources, the SBOM, all licences, and
# SHA256SUMS of everything. It builds what is committed: with other changes in the tree it refuses.
#
#   hack/release.sh          makes the release
#   hack/release.sh same     makes it twice, from two clones with a build cache each, and compares
#                            every file byte by byte
#   hack/release.sh publish  signs dist/ and brings it to the places that people install from. RELEASE_KEY is a private key
#                            of minisign, REGISTRY the beginning of the images' names (after `docker login`),
#                            APT_DIR a directory for the apt repository, and APT_KEY the key of gpg's that signs it. The module
#                            is published by the tag alone
#   hack/release.sh rehearse [DIST]
#                            publishes DIST, or what 'same' makes, with keys made for this to a registry, an apt repository
#                            and a module proxy on this machine, and installs from them as a stranger would
#
# KEEP names a directory that keeps the release of same. ARCHES names the architectures (amd64 arm64). A C compiler for each of them is needed.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "${1:-}" != rehearse ] || exec hack/rehearse.sh "${@:2}"
version=$(cat api/version/VERSION)
arches=${ARCHES:-amd64 arm64}
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

publish() { go build -C hack/tools/publish -o "$work/publish" . && "$work/publish" "$@"; }

if [ "${1:-}" = publish ]; then
	missing=
	for name in RELEASE_KEY REGISTRY APT_DIR APT_KEY; do [ -n "${!name:-}" ] || missing+=" $name"; done
	[ -z "$missing" ] || { echo "not set:$missing; hack/release.sh says at its beginning what they are" >&2; exit 2; }
	dist=${DIST:-dist}
	publish sign -key "$RELEASE_KEY" "$dist"
	hack/apt.sh "$dist" "$APT_DIR" "$APT_KEY"
	publish images -to "$REGISTRY" "$dist"
	exit
fi

if [ "${1:-}" = same ]; then
	for n in 1 2; do
		git clone -q . "$work/$n/elsewhere$n"
		GOCACHE=$work/$n/cache "$work/$n/elsewhere$n/hack/release.sh"
		rm -rf "$work/$n/cache"
	done
	diff <(cd "$work/1/elsewhere1/dist" && ls) <(cd "$work/2/elsewhere2/dist" && ls)
	for file in "$work"/1/elsewhere1/dist/*; do
		cmp "$file" "$work/2/elsewhere2/dist/$(basename "$file")" || { echo "$(basename "$file"): two releases of the same commit differ" >&2; exit 1; }
	done
	[ -z "${KEEP:-}" ] || cp -r "$work/1/elsewhere1/dist" "$KEEP"
	cat "$work/1/elsewhere1/dist/SHA256SUMS"
	echo "released twice, the same"
	exit
fi

if [ -n "$(git status --porcelain)" ]; then
	echo "a release is made of a commit, and there are changes that are not committed:" >&2
	git status --short >&2
	exit 1
fi
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# A compiler that is missing is told before anything is built.
for arch in $arches; do hack/stage.sh compiler "$arch" >/dev/null; done
rm -rf dist
mkdir dist
for arch in $arches; do hack/stage.sh "$arch" "$work/stage/$arch"; done
# shellcheck disable=SC2086 # one word for each architecture
STAGED=$work/stage hack/package.sh $arches
# shellcheck disable=SC2086
STRICT=1 hack/image.sh $arches
hack/chart.sh

# pack NAME FOLDER makes dist/NAME.tar.gz of a folder.
pack() {
	tar -C "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --format=gnu -c . | gzip -9n >"dist/$1.tar.gz"
}
for arch in $arches; do
	pack "berth-$version-linux-$arch" "$work/stage/$arch/root"
	cp "$work/stage/$arch/bin/berth.cdx.json" "dist/berth-$version-linux-$arch.cdx.json"
	cp "$work/stage/$arch/bin/LICENSES.txt" "dist/berth-$version-linux-$arch.LICENSES.txt"
done
git archive --format=tar --prefix="berth-$version/" HEAD | gzip -9n >"dist/berth-$version.tar.gz"
(cd dist && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
cat dist/SHA256SUMS
