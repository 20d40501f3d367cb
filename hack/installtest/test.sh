#!/usr/bin/env bash
# Installs the Debian packages in virtual machines with systemd.
#
#   hack/installtest/test.sh           all of it
#   hack/installtest/test.sh package   from an apt repository: start, pods of berthlet, a reboot, an upgrade and a downgrade under load,
#                                      removal, purge
#   hack/installtest/test.sh walk      the commands of docs/walk.md, whose output has to be the page's
#   hack/installtest/test.sh update    writes docs/walk.md
#   hack/installtest/test.sh arm64     package without upgrades, and demo; needs a C compiler for arm64
#   hack/installtest/test.sh demo      hack/demo.sh without containers on an emulated arm64 machine
#
# PACKAGES names a folder with packages that are made already, of this version and of 99.0.0.
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:-all} arch=amd64
case $what in
all | package | walk | update) ;;
arm64 | demo) arch=arm64 ;;
*) echo "$what: expected package, walk, update, arm64 or demo" >&2; exit 2 ;;
esac
# A compiler that is missing is told before anything is built.
[ "$what" != all ] || hack/stage.sh compiler arm64 >/dev/null

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(cat api/version/VERSION)
packages=${PACKAGES:-$work/packages}
if [ $what != demo ] && [ ! -d "$packages" ]; then
	export SOURCE_DATE_EPOCH
	SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
	hack/stage.sh $arch "$work/staged/$arch"
	for v in "$version" 99.0.0; do
		STAGED=$work/staged DIST=$packages AS_VERSION=$v hack/package.sh $arch
	done
fi
mkdir -p "$work/image" "$work/one"
CGO_ENABLED=0 GOARCH=$arch go build -o "$work/image/probe" ./hack/probe
go build -o "$work/vm" ./hack/vm
debs=()
for deb in dpkg tar dash coreutils grep sed diffutils libc-bin; do debs+=(-deb "$deb"); done

# machine FLAGS... boots one with a disk, on which packages can be installed.
machine() { "$work/vm" -arch $arch -systemd -cgroup v2 -nodes 2 -disk 1024 -module overlay -no-skip "${debs[@]}" "$@"; }

package=()
[ $arch = amd64 ] || package=(-env BERTH_TEST_BRIEF=yes)
case $what in
all | package | arm64)
	export GNUPGHOME=$work/gnupg
	mkdir -m 0700 "$GNUPGHOME"
	gpg --batch --quiet --passphrase '' --quick-gen-key 'berth test <test@example.org>' ed25519 sign never
	hack/apt.sh "$packages" "$work/apt" test@example.org
	gpgconf --kill all
	for deb in apt gpgv findutils mawk util-linux; do debs+=(-deb "$deb"); done
	machine "${package[@]}" -cpus 4 -memory 1536 -reboots 1 -timeout 40m -add "$work/apt:/opt/apt" -env BERTH_TEST_REPOSITORY=/opt/apt \
		-add "$work/image:/opt/image" -env BERTH_TEST_IMAGE=/opt/image './hack/installtest:^TestPackage$'
	;;
esac
case $what in
arm64 | demo)
	mkdir -p "$work/demo/bin" "$work/demo/hack"
	cp hack/demo.sh "$work/demo/hack/"
	for program in server/berthd clients/berthctl hack/plugin; do
		CGO_ENABLED=0 GOARCH=$arch go build -buildvcs=false -ldflags "-s -w" -o "$work/demo/bin/" "./$program"
	done
	machine -deb bash -deb mawk -deb findutils -cpus 4 -memory 1024 -timeout 40m -add "$work/demo:/opt/demo" -env BERTH_TEST_DEMO=/opt/demo \
		'./hack/installtest:^TestDemo$'
	;;
esac
case $what in package | arm64 | demo) exit ;; esac

cp "$packages"/*_"$version"-1_amd64.deb "$work/one/"
CGO_ENABLED=0 go build -o "$work/gpu-plugin" ./hack/plugin
walk=(-deb curl -cpus 4 -memory 1536 -timeout 20m -add "$work/one:/opt/packages" -env BERTH_TEST_PACKAGES=/opt/packages
	-add "$work/image:/var/lib/berth-images/probe" -add "$work/gpu-plugin:/usr/local/bin/gpu-plugin"
	-add "$PWD/docs/walk.md:/opt/walk.md" -env BERTH_TEST_WALK=/opt/walk.md)
if [ "$what" = update ]; then
	machine "${walk[@]}" -v -env BERTH_TEST_UPDATE=yes './hack/installtest:^TestWalk$' | tee "$work/log"
	sed -n 's/^walk| \{0,1\}//p' "$work/log" >"$work/walk.md"
	mv "$work/walk.md" docs/walk.md
else
	machine "${walk[@]}" './hack/installtest:^TestWalk$'
fi
[ "$what" != all ] || PACKAGES='' hack/installtest/test.sh arm64
