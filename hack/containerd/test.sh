#!/usr/bin/env bash
# The tests on real container runtimes: builds containerd, its shim and runc from
# their Go modules, and runs what asks for them, also in a virtual machine where systemd
# is the driver of cgroups, of version 2, and a stress test of BERTH_STRESS containers (200)
# that fails if anybody ran on the exclusive CPUs of another; the tests of NRI with older releases of containerd, and those of CRI and NRI
# with CRI-O; then once more with the containerd that is installed here, if there is one, but for NRI and the machine. With "vm" it runs only
# the machine's part, with "older" only the older releases, with "crio" only CRI-O. Needs root, a C compiler, pkg-config and libseccomp with its header
# (Debian: libseccomp-dev): containers have a seccomp profile by default, and runc
# refuses to make those where it is built without.
set -euo pipefail
cd "$(dirname "$0")/../.."

programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT

# run_with FOLDER PACKAGES... runs the tests.
run_with() {
	BERTH_CONTAINERD=$1 go test -count=1 -run 'Containerd' "${@:2}"
}

# build_older FOLDER MODULE@VERSION builds a release of containerd, with the modules that its own go.mod names.
build_older() {
	local source=$programs/source program
	cp -r "$(go mod download -json "$2" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')" "$source"
	chmod -R u+w "$source"
	mkdir "$1"
	for program in containerd containerd-shim-runc-v2 ctr; do
		go build -C "$source" -ldflags "-s -w -X ${2%@*}/version.Version=${2##*@}" -o "$1/" "./cmd/$program"
	done
	ln -s "$programs/built/runc" "$1/"
	rm -rf "$source"
}

# test_older runs the tests of NRI with the newest releases of older lines, whose NRI differs (docs/versions.md).
test_older() {
	local version folder
	for version in containerd@v1.7.35 containerd/v2@v2.1.9 containerd/v2@v2.2.9 containerd/v2@v2.3.7; do
		folder=$programs/${version##*@}
		build_older "$folder" "github.com/containerd/$version"
		BERTH_CONTAINERD=$folder go test -count=1 -run '^TestContainerd(Release)?$' ./clients/nri
		rm -rf "$folder"
	done
}

# test_crio runs the tests of CRI and of NRI with CRI-O, but for those that only containerd can pass: NRI reports no CDI devices there.
test_crio() {
	hack/containerd/crio.sh "$programs/crio"
	run_with "$programs/crio" ./server/internal/runtime/criclient ./clients/berthlet/...
	BERTH_CONTAINERD=$programs/crio go test -count=1 -run '^TestContainerd(Release)?$' ./clients/nri
	BERTH_STRESS=${BERTH_STRESS:-200} BERTH_CONTAINERD=$programs/crio \
		go test -count=1 -timeout 2h -p 1 -v -run '^TestStressContainerd$' ./clients/nri ./clients/berthlet
}

if [ "${1:-}" = crio ]; then
	test_crio
	exit
fi
mkdir "$programs/built" "$programs/installed"
pkg-config --exists libseccomp || { echo "missing: libseccomp, for runc; apt-get install pkg-config libseccomp-dev" >&2; exit 1; }
go build -C hack/tools/containerd -tags seccomp -o "$programs/built/" tool
library=$(ldd "$programs/built/runc" | awk '/libseccomp/ {print $3}')
if [ "${1:-}" = older ]; then
	test_older
	exit
fi
if [ "${1:-}" != vm ]; then
	run_with "$programs/built" ./server/internal/runtime/criclient ./clients/berthlet/... ./clients/nri ./hack/quickstart
	# berth's own images, of this machine's architecture.
	rm -f dist/*.oci.tar
	hack/image.sh "$(go env GOHOSTARCH)"
	BERTH_IMAGES=$PWD/dist run_with "$programs/built" ./hack/testing/containerd
	# Containers that come and go beside pods with CPUs of their own, while everything is
	# killed: on NRI, on CRI and on berthlet's own runtime, one after the other.
	BERTH_STRESS=${BERTH_STRESS:-200} BERTH_CONTAINERD="$programs/built" \
		go test -count=1 -timeout 2h -p 1 -v -run '^TestStress' ./clients/nri ./clients/berthlet
	test_older
	test_crio
fi

# The machine has no Go toolchain, and of its own no shell, which the plugin of the
# network wants.
mkdir -p "$programs/berth/root"
CGO_ENABLED=0 go build -o "$programs/berth/berthd" ./server/berthd
CGO_ENABLED=0 go build -o "$programs/berth/root/probe" ./hack/probe
vm=(go run ./hack/vm -systemd -cgroup v2 -nodes 2 -no-skip -timeout 40m
	-add "$programs/built:/opt/containerd" -env BERTH_CONTAINERD=/opt/containerd
	-add "$programs/berth:/opt/berth" -env BERTH_BUILT=/opt/berth
	-add "$(readlink -f /bin/sh):/usr/bin/sh" -add "$(readlink -f "$library"):/usr${library#/usr}")
"${vm[@]}" './clients/berthlet:^TestContainerdSlices$' './clients/nri:^TestContainerdSlices(Release)?$'
# AppArmor with the profile of containerd, as on Debian.
"${vm[@]}" -deb apparmor './clients/nri:^TestContainerdSlicesAppArmor$'
# A container moves to another NUMA node with its memory.
"${vm[@]}" -cpus 8 './clients/nri:^TestContainerdSlicesMoveMemory$'
"${vm[@]}" -cpus 8 -env BERTH_TEST_OFFLINE=1 './clients/berthlet:^TestContainerdSlicesExclusive$'
[ "${1:-}" != vm ] || exit 0

for name in containerd containerd-shim-runc-v2 ctr runc; do
	if ! path=$(PATH=$PATH:/usr/sbin command -v "$name"); then
		echo "not run again: $name is not installed here"
		exit
	fi
	ln -s "$path" "$programs/installed/"
done
run_with "$programs/installed" ./server/internal/runtime/criclient ./clients/berthlet/...
