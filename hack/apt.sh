#!/usr/bin/env bash
# Puts the Debian packages of a release into an apt repository: a directory that any web server, or file://, serves.
#
#   hack/apt.sh DIST DIR KEY     KEY is a key of gpg's that signs InRelease; its public half is DIR/berth.gpg
#
# Packages that the repository has already stay, so that a version can be taken back. A machine uses it so:
#
#   deb [signed-by=/etc/apt/keyrings/berth.gpg] URL stable main
set -euo pipefail
[ $# = 3 ] || { echo "expected hack/apt.sh DIST DIR KEY" >&2; exit 2; }
dist=$(realpath "$1") dir=$(realpath -m "$2") key=$3
for tool in dpkg-scanpackages gpg; do
	command -v "$tool" >/dev/null || { echo "missing: $tool (Debian: apt-get install dpkg-dev gpg)" >&2; exit 1; }
done
# A name may also be a part of that of others, whose keys nobody shall trust.
mapfile -t signers < <(gpg --batch --with-colons --list-secret-keys -- "$key" 2>/dev/null | awk -F: '$1 == "sec" {of = 1} $1 == "fpr" && of {print $10; of = 0}')
case ${#signers[@]} in
0) echo "$key: gpg has no key to sign with that is called so (gpg --list-secret-keys)" >&2; exit 1 ;;
1) ;;
*) echo "$key: gpg has ${#signers[@]} keys that are called so; name one by its fingerprint: ${signers[*]}" >&2; exit 1 ;;
esac
shopt -s nullglob
debs=("$dist"/*.deb)
[ ${#debs[@]} -gt 0 ] || { echo "$dist has no package (*.deb): make package" >&2; exit 1; }
epoch=${SOURCE_DATE_EPOCH:-$(date +%s)}
mkdir -p "$dir/pool"
for deb in "${debs[@]}"; do
	there=$dir/pool/${deb##*/}
	# Machines that have this version would never get another one of the same number.
	if [ -e "$there" ] && ! cmp -s "$deb" "$there"; then
		echo "${deb##*/} is published already, with other content: raise the version" >&2
		exit 1
	fi
	install -m 644 "$deb" "$there.part"
	mv "$there.part" "$there"
done
cd "$dir"
arches=()
for arch in amd64 arm64; do
	packages=dists/stable/main/binary-$arch
	mkdir -p "$packages"
	dpkg-scanpackages --multiversion --arch "$arch" pool >"$packages/Packages" 2>/dev/null
	gzip -9nkf "$packages/Packages"
	arches+=("$arch")
done
cd dists/stable
{
	echo "Origin: berth"
	echo "Label: berth"
	echo "Suite: stable"
	echo "Codename: stable"
	echo "Date: $(LC_ALL=C date -u -d "@$epoch" '+%a, %d %b %Y %H:%M:%S UTC')"
	echo "Architectures: ${arches[*]}"
	echo "Components: main"
	echo "SHA256:"
	find main -type f -name 'Packages*' | LC_ALL=C sort | while read -r file; do
		echo " $(sha256sum <"$file" | cut -d' ' -f1) $(stat -c %s "$file") $file"
	done
} >Release
gpg --batch --yes --local-user "$key" --clearsign --output InRelease Release
gpg --batch --yes --output "$dir/berth.gpg" --export "${signers[0]}"
