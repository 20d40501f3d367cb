#!/usr/bin/env bash
# The tests on real Kubernetes clusters of one and of three nodes: builds etcd, the programs of Kubernetes, two older kubelets, containerd,
# its shim and runc from their Go modules, and runs the tests that need them. The first build takes about
# 25 minutes on two cores. With "vm" the cluster runs in a virtual machine of two NUMA nodes that is booted
# twice, in place of these tests: it is emulated, and takes 15 to 40 minutes. With "vm claims" pods with claims beside devices
# come and go there, and then the same pods with classic requests; "vm claims 4" has four NUMA nodes. With "vm observe" berthd observes a
# kubelet there. With "crio" only some tests run, on nodes with CRI-O; with "scheduler" only the one with the scheduler's plugin for NUMA
# nodes. Needs root, a C compiler, pkg-config and libseccomp with its header, and for CRI-O what hack/containerd/crio.sh needs.
#
# BERTH_CLUSTER is the directory of the programs, if they are built already, and BERTH_CRIO that of CRI-O. BERTH_SCHEDULER is
# the scheduler with the plugin.
#
# The DaemonSet is upgraded from the build of the commit BERTH_OLDER_COMMIT; the default is the last release.
# BERTH_STRESS is the number of pods of the stress test (150), or how long it takes, as in 10m. With BERTH_LOAD=full 5,000 nodes
# write NodeResourceTopology objects for five minutes, in place of 500 for some seconds. BERTH_PODS is the number of pods of
# "vm claims" (50).
set -euo pipefail
cd "$(dirname "$0")/../.."

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
programs=${BERTH_CLUSTER:-}
if [ -z "$programs" ]; then
	programs=$dir/programs
	# The oldest kubelet that works with this API server, and the last one without the Pods API.
	kubelets=(v1.34.4 v1.36.3)
	case ${1:-} in vm | crio | scheduler) kubelets=() ;; esac
	hack/cluster/build.sh "$programs" "${kubelets[@]}"
fi
export BERTH_CLUSTER=$programs BERTH_CONTAINERD=$programs

# test_crio runs the tests that need no claims, and no updates at any time (docs/versions.md), on nodes with CRI-O, one of them on three.
test_crio() {
	local crio=${BERTH_CRIO:-$dir/crio}
	[ -n "${BERTH_CRIO:-}" ] || hack/containerd/crio.sh "$crio"
	BERTH_CONTAINERD=$crio go test -count=1 -timeout 1h -v -run '^TestCluster(Nodes|Pods|InstallNodes)?$' ./hack/cluster ./clients/nri
}
# test_scheduler runs two nodes with the scheduler's plugin NodeResourceTopologyMatch.
test_scheduler() {
	export BERTH_SCHEDULER=${BERTH_SCHEDULER:-$dir/numa-scheduler}
	[ -x "$BERTH_SCHEDULER" ] || hack/cluster/scheduler.sh "$BERTH_SCHEDULER"
	go test -count=1 -timeout 1h -v -run '^TestClusterScheduler$' ./clients/nri
}
case ${1:-} in
crio | scheduler)
	"test_$1"
	exit
	;;
esac

# build SOURCE DIR builds berth's programs, which need no C library. An older source may lack some of them.
build() {
	local program
	for program in berthd:server/berthd berthctl:clients/berthctl berth-nri:clients/nri berth-dra:clients/dra plugin:hack/plugin gpudriver:hack/gpudriver root/probe:hack/probe; do
		[ -d "$1/${program#*:}" ] || continue
		CGO_ENABLED=0 go build -C "$1" -buildvcs=false -ldflags "-s -w" -o "$2/${program%%:*}" "./${program#*:}"
	done
}

if [ "${1:-}" != vm ]; then
	older=${BERTH_OLDER_COMMIT:-$(git describe --tags --abbrev=0 2>/dev/null || true)}
	if [ -n "$older" ]; then
		mkdir -p "$dir/source" "$dir/older"
		git archive "$older" | tar -x -C "$dir/source"
		build "$dir/source" "$dir/older"
		cp -r "$dir/source/deploy/kubernetes" "$dir/older/"
		export BERTH_OLDER=$dir/older
	fi
	go test -count=1 -timeout 1h -v -run '^TestCluster' ./hack/cluster ./clients/nri
	# The cluster that stays.
	export BERTH_UP_DIR=$dir/up
	hack/cluster/up.sh 2
	"$programs/kubectl" --kubeconfig "$BERTH_UP_DIR/kubeconfig" wait --for=condition=Ready --timeout=60s node/n1 node/n2
	hack/cluster/down.sh
	test_crio
	test_scheduler
	# Pods that come and go beside pods with CPUs of their own, and claims, while everything is killed.
	BERTH_STRESS=${BERTH_STRESS:-150} go test -count=1 -timeout 1h -v -run '^TestStressC(luster|laims)$' ./clients/nri
	exit
fi

# The machine has no Go toolchain and no shell, and its repository is /src.
build . "$dir/berth"
library=$(ldd "$programs/runc" | awk '/libseccomp/ {print $3}')
case ${*:2} in
"") machine="-nodes 2 -cpus 4 -timeout 40m -reboots 1" test=TestClusterMachine ;;
claims | "claims 2") machine="-nodes 2 -cpus 8 -timeout 90m" test=TestClusterPacked ;;
"claims 4") machine="-nodes 4 -cpus 8 -timeout 90m" test=TestClusterPacked ;;
observe) machine="-nodes 2 -cpus 8 -timeout 90m" test=TestClusterObserveVM ;;
*) echo "${*:2}: expected nothing, claims, claims 4 or observe" >&2; exit 2 ;;
esac
# shellcheck disable=SC2086 # several flags
go run ./hack/vm -v -systemd -cgroup v2 -memory 3072 -no-skip -boot-limit 4m -disk 4096 -module overlay $machine \
	-disk-add "$programs:/cluster" -env BERTH_CLUSTER=/disk/cluster -env BERTH_CONTAINERD=/disk/cluster -env GOGC=400 -env "BERTH_PODS=${BERTH_PODS:-}" \
	-disk-add "$dir/berth:/berth" -env BERTH_BUILT=/disk/berth \
	-add "$(readlink -f /bin/sh):/usr/bin/sh" -add "$(readlink -f "$library"):/usr${library#/usr}" \
	-add "$PWD/deploy/kubernetes:/src/github.com/berthd/berth/deploy/kubernetes" \
	"./clients/nri:^$test\$"
