#!/usr/bin/env bash
# The tests that want another kernel set-up than this machine's, in virtual
# machines: all of them, or with "quick" the one boot that CI does. What cannot
# be had on this machine is told and skipped by "quick"; otherwise it fails.
set -euo pipefail
cd "$(dirname "$0")/../.."

built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
program=$built/vm
go build -o "$program" ./hack/vm

if [ "${1:-}" = quick ]; then
	"$program" -optional -short -systemd -nodes 2 -cpus 4 -memory 1024 \
		./server/internal/host/cgroupfs ./server/internal/host/systemd './server/berthd:^(TestMainJob|TestSlices)$'
	exit
fi

failed=()
# vm FLAGS... boots a machine; a failure does not keep the next one from its turn.
vm() {
	echo "--- vm $*"
	"$program" "$@" || failed+=("$*")
}

# The tree, whole: each version of the kernel's interface, memory on memory-only
# nodes, and the values of the kubelet's captures.
vm -cgroup v2 -shape n4mem ./server/internal/host/cgroupfs ./server/internal/reconcile
vm -cgroup v1 -shape n4mem ./server/internal/host/cgroupfs ./server/internal/reconcile
vm -cgroup hybrid -nodes 2 ./server/internal/host/cgroupfs

# Beside systemd: with slices of its own, and with directories beside them. The loop
# of kills, damaged ledgers, frozen cgroups and memory on its nodes, with slices.
loop='MainJob|Crash|CutOff|DamagedLedger|Orphan|LivingPods|FrozenCgroups|MemoryPinned'
vm -systemd -cgroup v2 -nodes 2 ./server/internal/host/cgroupfs ./server/internal/host/systemd './server/berthd:^(TestMainJob|TestSlices|TestReexecutedSystemd)$'
vm -systemd -cgroup v2 -nodes 2 -env BERTH_TEST_CGROUP_DRIVER=systemd "./server/berthd:$loop"
vm -systemd -cgroup v2 -cpus 8 -env BERTH_TEST_CGROUP_DRIVER=systemd './server/berthd:^TestResize'
vm -systemd -cgroup v1 -nodes 2 ./server/internal/host/cgroupfs ./server/internal/host/systemd './server/berthd:^(TestMainJob|TestSlices|TestReexecutedSystemd|TestFrozenCgroups)$'

# Under the unit that berth comes with.
unit=(-add "$PWD/deploy:/deploy" -env BERTH_TEST_DEPLOY=/deploy './server/berthd:UnderItsUnit$')
vm -systemd -cgroup v2 -nodes 2 "${unit[@]}"
vm -systemd -cgroup v1 -nodes 2 "${unit[@]}"

# Whatever the kubelets of the recordings did, and what it left in the kernel's
# files; the machine of n4 has room for most of the others.
like=./server/internal/app:OnTheMachine
vm -systemd -cgroup v2 -shape n4 "$like"
vm -cgroup v1 -shape n4 "$like"
vm -systemd -cgroup v2 -shape n4intel "$like/smt"
vm -systemd -cgroup v2 -shape n12 "$like/n12"

# The daemon, as far as it depends on the kernel and the machine.
kernel='MainJob|Crash|CutOff|OnTheMachine|Cgroup|Orphan|LivingPods|DamagedLedger|FreeHugePages|Memory|Quota|RolesOfRealUsers'
offline=(-env BERTH_TEST_OFFLINE=1)
vm -timeout 40m -cgroup v2 -shape n4 "${offline[@]}" "./server/berthd:$kernel|Offline|CPUsGo|HugePagesAtRunTime"
vm -timeout 40m -cgroup v1 -shape n4 "${offline[@]}" "./server/berthd:$kernel|Offline|CPUsGo|HugePagesAtRunTime"
vm -cgroup v2 -shape n8 "./server/berthd:MainJob|MemoryPinned"

# A container moves to another NUMA node with its memory and its huge pages, or within its nodes.
moves='./server/berthd:^(TestMoveOnTheMachine|TestMoveEachKindOnTheMachine|TestDefragOnTheMachine|TestDefragWithinNodesOnTheMachine|TestMoveHugePagesOnTheMachine|TestDefragHugePagesOnTheMachine|TestReaderOfHugePages)$'
vm -cgroup v2 -nodes 2 -cpus 8 -hugepages '2M=32,32' "$moves"
vm -cgroup v1 -nodes 2 -cpus 8 -hugepages '2M=32,32' "$moves"
vm -cgroup v2 -nodes 2 -cpus 8 -memory 8192 -hugepages '1G=1,1' './server/berthd:^TestMoveGiantPagesOnTheMachine$'
vm -cgroup v2 -shape n4intel -env BERTH_TEST_OFFLINE=1 "./server/berthd:TestMoveOnTheMachine|TestDefragOnTheMachine|Offline|CPUsGo"
crash='./server/berthd:^TestCrashDuringAMoveOnTheMachine$'
vm -cgroup v2 -nodes 2 -cpus 8 -hugepages '2M=32,32' -timeout 60m "$crash"
vm -cgroup v1 -nodes 2 -cpus 8 -hugepages '2M=32,32' -timeout 60m "$crash"

# The containers of berthlet's own runtime are resized, move, and lose a CPU, while the programs are killed. The machine has
# no Go toolchain to build these.
mkdir -p "$built/berth/root"
CGO_ENABLED=0 go build -o "$built/berth/berthd" ./server/berthd
CGO_ENABLED=0 go build -o "$built/berth/root/probe" ./hack/probe
for version in v2 v1; do
	vm -cgo -cgroup "$version" -nodes 2 -cpus 8 -module overlay -no-skip -add "$built/berth:/opt/berth" -env BERTH_BUILT=/opt/berth \
		-env BERTH_TEST_OFFLINE=1 './clients/berthlet:^TestExclusive$'
done

# CPUs and memory are plugged in and taken out.
vm -cgroup v2 -shape n3plug './server/berthd:IsPlugged'
vm -cgroup v1 -shape n3plug './server/berthd:IsPlugged'

# The machine is killed in the middle of admissions and comes back with its disk.
# (File systems are cut on this machine: TestFileSystemCut.)
vm -cgroup v2 -cpus 2 -memory 1024 -disk 64 -cuts 10 './server/berthd:^TestMachineCut$'

# Discovery on every other shape, but the one with absent parts.
for shape in n1 n2asym n2g n2pci n3cpuonly n4 n4il n4mem n8 n12 n1dies n2intel n2dies n4intel n2epyc; do
	vm -shape "$shape" ./server/internal/host/sysfs:Host
done

if [ ${#failed[@]} -gt 0 ]; then
	printf 'failed: %s\n' "${failed[@]}"
	exit 1
fi
