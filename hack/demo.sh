#!/usr/bin/env bash
# Shows berth's main job on this machine, end to end, and leaves nothing behind.
# As root it works with the kernel's cgroups; without a writable cgroup tree it
# says so and works with a tree that only exists inside berthd.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '\n\033[1m# %s\033[0m\n' "$*"; }
run() { printf '\033[2m$ %s\033[0m\n' "$*"; "$@"; }

root=$(mktemp -d /tmp/berthdemo.XXXXXX)
cgroup=$(basename "$root")
daemon="" plugin="" processes=()
export BERTH_ENDPOINT=unix://$root/berth.sock
PATH=$PWD/bin:$PATH

cgroup_dirs() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup" 2>/dev/null || true; }

cleanup() {
	for pid in "${processes[@]}" $plugin $daemon; do kill -KILL "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	for dir in $(cgroup_dirs); do find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
	rm -rf "$root"
}
trap cleanup EXIT

tree=kernel
probe=$(find /sys/fs/cgroup/cpuset /sys/fs/cgroup -maxdepth 0 -type d 2>/dev/null | head -n 1)
if ! mkdir "$probe/$cgroup-probe" 2>/dev/null; then
	tree=memory
	echo "no writable cgroup tree (user $(id -un)): cgroups will only exist inside berthd, so processes stay on all CPUs"
else
	rmdir "$probe/$cgroup-probe"
fi
if [ "$(nproc)" -lt 2 ]; then
	echo "one CPU: it is reserved for the system, so no pod can have a CPU of its own; the pod that asks for one is rejected"
fi

start_daemon() {
	berthd --root-dir "$root" --cgroup-root "/$cgroup" --cgroup-tree "$tree" \
		--cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy best-effort \
		--fail-swap-on=false >>"$root/berthd.log" 2>&1 &
	daemon=$!
	until berthctl get pods >/dev/null 2>&1; do
		kill -0 "$daemon" 2>/dev/null || { cat "$root/berthd.log"; exit 1; }
		sleep 0.05
	done
}

# pod UID CPU MEMORY [GPUS] prints a manifest; a CPU of "-" asks for none.
pod() {
	local uid=$1 cpu=$2 memory=$3 gpus=${4:-0} limits
	limits="memory: $memory"
	[ "$cpu" = - ] || limits+=", cpu: $cpu"
	[ "$gpus" = 0 ] || limits+=", example.com/gpu: $gpus"
	cat <<-YAML
		apiVersion: v1
		kind: Pod
		metadata: {name: $uid, namespace: default, uid: $uid}
		spec:
		  containers:
		  - name: main
		    resources:
		      limits: {$limits}
	YAML
}

# start_process UID starts a process, held before its first instruction, hands it
# to berth as the pod's container, and lets it go.
start_process() {
	sh -c 'kill -STOP $$; exec sleep 3600' &
	local pid=$!
	processes+=("$pid")
	disown "$pid" # it will be killed, and that is no news
	until grep -q '^State:.*T' "/proc/$pid/status"; do :; done
	run berthctl container start "$1" main --id "$1-1" --pid "$pid"
	kill -CONT "$pid"
	echo "process $pid of pod $1 may run on CPUs: $(awk '/^Cpus_allowed_list/ {print $2}' "/proc/$pid/status")"
}

say "berthd starts; everything it makes lies under $root"
start_daemon
run berthctl topology

say "A device plugin registers, as it would with a kubelet"
plugin -dir "$root/device-plugins" -resource example.com/gpu -devices 'gpu0@0 gpu1@0' >"$root/plugin.log" 2>&1 &
plugin=$!
until berthctl get resources -o json | grep -q '"allocatable": *"2"'; do :; done
run berthctl get resources

say "A pod on the shared CPUs, and a pod with a CPU and a GPU of its own"
pod web - 64Mi >"$root/web.yaml"
pod trainer 1 128Mi 1 >"$root/trainer.yaml"
run berthctl admit -f "$root/web.yaml"
start_process web
run berthctl admit -f "$root/trainer.yaml" || [ "$(nproc)" -lt 2 ]
[ "$(nproc)" -lt 2 ] || start_process trainer
echo "process ${processes[0]} of pod web now runs on CPUs: $(awk '/^Cpus_allowed_list/ {print $2}' "/proc/${processes[0]}/status")"

say "What a runtime needs to start the container"
[ "$(nproc)" -lt 2 ] || run berthctl allocate trainer main

say "A pod that does not fit is rejected: what is missing, who holds it, what would help; nothing is left of it"
pod greedy $(($(nproc) > 2 ? $(nproc) - 1 : 1)) 64Mi 2 >"$root/greedy.yaml"
run berthctl admit -f "$root/greedy.yaml" || true
run berthctl explain greedy

say "All pods"
run berthctl get pods -o wide
run berthctl get cpus

say "berthd is killed and started again; nothing changes"
before=$(berthctl get pods -o json | grep -vE 'revision|health')
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
start_daemon
if [ "$(berthctl get pods -o json | grep -vE 'revision|health')" = "$before" ]; then echo "the same pods, CPUs and devices as before"; else echo "something changed!"; exit 1; fi
for pid in "${processes[@]}"; do
	echo "process $pid may run on CPUs: $(awk '/^Cpus_allowed_list/ {print $2}' "/proc/$pid/status")"
done
run berthctl ledger check

say "The pods are removed: processes killed, cgroups gone, everything free"
run berthctl remove trainer
run berthctl remove web
run berthctl get pods
for pid in "${processes[@]}"; do
	# Without real cgroups nobody has killed them.
	[ "$tree" = kernel ] || kill -KILL "$pid"
	until ! grep -qs '^State:[[:space:]]*[^Z]' "/proc/$pid/status"; do sleep 0.05; done
done
processes=() # their numbers may be somebody else's from now on

kill -TERM "$daemon" "$plugin"
wait "$daemon" 2>/dev/null || { cat "$root/berthd.log"; exit 1; }
daemon="" plugin=""
cleanup
trap - EXIT
left=$(cgroup_dirs)
[ -z "$left" ] && [ ! -e "$root" ] || { echo "left behind: $root $left"; exit 1; }
say "Nothing is left behind"
