#!/usr/bin/env bash
# Shows berth's main job on this machine, end to end, and leaves nothing behind but the programs in bin:
# berthd decides, berthlet runs the pods as containers. Their root file system is
# one static binary. Containers take root, a writable cgroup tree and a C compiler for berthlet; elsewhere
# the demo says so and only asks berthd, with cgroups that exist inside of it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Titles and commands stand out on a terminal, and are plain in a file.
bold="" dim="" plain=""
[ ! -t 1 ] || bold=$'\033[1m' dim=$'\033[2m' plain=$'\033[0m'
say() { printf '\n%s# %s%s\n' "$bold" "$*" "$plain"; }
run() { printf '%s$ %s%s\n' "$dim" "$*" "$plain"; "$@"; }

root="" containers="" daemon="" agent="" plugin="" cpus=$(nproc) go=${GO:-go}
# BERTH_DEMO_BIN names a folder with programs that are built already; otherwise they are built in bin.
bin=${BERTH_DEMO_BIN:-$PWD/bin}
PATH=$bin:$PATH

cgroup_dirs() { find /sys/fs/cgroup -maxdepth 2 -type d -name "$cgroup" 2>/dev/null || true; }

cleanup() {
	local dir
	[ -n "$root" ] || return 0
	for pid in $(jobs -p); do kill -KILL "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	for dir in $(cgroup_dirs); do
		find "$dir" -name cgroup.procs -exec cat {} + 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
	done
	for _ in $(seq 100); do # 5 s at most
		[ -n "$(cgroup_dirs)" ] || break
		for dir in $(cgroup_dirs); do find "$dir" -depth -type d -exec rmdir {} + 2>/dev/null || true; done
		sleep 0.05
	done
	while read -r mount; do umount -l "$mount"; done < <(awk -v root="$root/" 'index($5, root) == 1 {print $5}' /proc/self/mountinfo | sort -r)
	rm -rf "$root"
}

# bash 5.2 ends with a syntax error if a trap runs while bash parses the script or a "$(…)". So bash has read all of main
# before it sets the traps, and from here on the older form is used, which another process parses.
interrupted() {
	trap "" INT TERM
	exit 130
}

# limit is how many seconds anything here may take.
limit=${BERTH_DEMO_LIMIT:-60}

# await WHAT COMMAND... waits until a command succeeds. After the limit it prints what is known, and the demo ends.
await() {
	local what=$1 end=$((SECONDS + limit))
	shift
	until "$@"; do
		if [ $SECONDS -ge $end ]; then
			echo "$what: not within $limit s (BERTH_DEMO_LIMIT)" >&2
			state_of_all >&2
			exit 1
		fi
		sleep 0.05
	done
}

# state_of_all prints the containers as berthlet sees them, their output, and the ends of the logs.
state_of_all() {
	local log
	[ -z "$containers" ] || berthlet status --state-dir "$state" || true
	berthctl get pods || true
	find "$logs" -name '*.log' 2>/dev/null | while read -r log; do
		echo "--- $log"
		tail -n 10 "$log"
	done
	for log in berthd berthlet plugin; do
		[ ! -s "$root/$log.log" ] || { echo "--- the end of $log.log"; tail -n 10 "$root/$log.log"; }
	done
}

# build builds the programs that the demo shows, each one only where it can be used.
build() {
	local program pid began
	local -a programs=(berthd berthctl plugin)
	[ -z "$containers" ] || programs+=(berthlet probe)
	echo "Building ${programs[*]} in $bin. The first time takes minutes: Go fetches the modules, and compiles them."
	for program in "${programs[@]}"; do
		began=$SECONDS
		printf '  %s' "$program"
		case $program in
		plugin | probe) CGO_ENABLED=0 $go build -buildvcs=false -o "$bin/$program" "./hack/$program" ;;
		*) GO=$go hack/build.sh "$bin" "$program" ;;
		esac
		echo " $((SECONDS - began)) s"
	done
}

# without WHY says that there are no containers.
without() {
	containers="" tree=memory
	echo "$1: berthd will decide, and nothing will run"
}

start_daemon() {
	berthd --root-dir "$root" --cgroup-root "/$cgroup" --cgroup-tree "$tree" \
		--cpu-manager-policy static --reserved-cpus 0 --topology-manager-policy best-effort \
		--fail-swap-on=false >>"$root/berthd.log" 2>&1 &
	daemon=$!
	await "berthd answers" answers
}

# ended PID tells whether a process has.
ended() { ! kill -0 "$1" 2>/dev/null; }

# answers tells whether berthd does; if it has ended, the demo ends.
answers() {
	kill -0 "$daemon" 2>/dev/null || { cat "$root/berthd.log"; exit 1; }
	berthctl get pods >/dev/null 2>&1
}

start_agent() {
	[ -n "$containers" ] || return 0
	berthlet --manifests "$manifests" --images "$root/images" --state-dir "$state" --pod-logs-dir "$logs" >>"$root/berthlet.log" 2>&1 &
	agent=$!
}

# manifest UID CPU MEMORY [GPUS] prints a pod; a CPU of "-" asks for none.
manifest() {
	local uid=$1 cpu=$2 memory=$3 gpus=${4:-0} limits
	limits="memory: $memory"
	[ "$cpu" = - ] || limits+=", cpu: $cpu"
	[ "$gpus" = 0 ] || limits+=", example.com/gpu: $gpus"
	cat <<-YAML
		apiVersion: v1
		kind: Pod
		metadata: {name: $uid, uid: $uid}
		spec:
		  containers:
		  - name: main
		    image: probe
		    command: [/probe, show, ",", wait]
		    resources: {limits: {$limits}}
	YAML
}

# field UID COLUMN prints a column of berthlet's table for a pod.
field() { berthlet status --state-dir "$state" 2>/dev/null | awk -v name="$1" -v column="$2" '$2 == name {print $column}'; }

# begin UID CPU MEMORY [GPUS] makes a pod wanted, and waits until it runs or is
# refused.
begin() {
	if [ -z "$containers" ]; then
		manifest "$@" >"$root/$1.yaml"
		run berthctl admit -f "$root/$1.yaml" || true
		return
	fi
	manifest "$@" >"$manifests/.$1"
	mv "$manifests/.$1" "$manifests/$1.yaml"
	run cat "$manifests/$1.yaml"
	await "pod $1 runs or is rejected" decided "$1"
	[ "`field "$1" 4`" != Running ] || heard "$1"
}

# decided UID tells whether a pod runs, or was rejected.
decided() {
	kill -0 "$agent" 2>/dev/null || { cat "$root/berthlet.log"; exit 1; }
	[[ `field "$1" 4` =~ ^(Running|UnexpectedAdmissionError|OutOf.*)$ ]]
}

# heard UID prints what the container of a pod has found out about itself.
heard() {
	local log=$logs/default_$1_$1/main/0.log
	await "the container of $1 has written what it sees" grep -qs shown=all "$log"
	echo "the container of $1 says:" `sed -nE 's/^.* F ((affinity|mems|cgroup\.(memory|cpu\.shares|cpu\.weight)[^=]*|env\.EXAMPLE_COM_GPU)=.*)$/\1/p' "$log"`
}

# process UID prints the process of a pod's container, as the machine counts.
process() { berthlet status --state-dir "$state" -o json | awk -v uid="\"$1\"," '$1 == "\"uid\":" {mine = $2 == uid} mine && $1 == "\"pid\":" {gsub(/[^0-9]/, "", $2); print $2}'; }

# where UID... says where processes may run now, by the kernel.
where() {
	local uid pid
	for uid in "$@"; do
		pid=`process "$uid"`
		[ -z "$pid" ] || echo "process $pid, the container of $uid, may run on CPUs: `awk '/^Cpus_allowed_list/ {print $2}' "/proc/$pid/status"`"
	done
}

main() {
	# Another Ctrl-C does not interrupt the removal.
	trap 'trap "" INT TERM; cleanup' EXIT
	trap interrupted INT TERM

	root=`mktemp -d "${TMPDIR:-/tmp}/berthdemo.XXXXXX"`
	cgroup=${root##*/}
	export BERTH_ENDPOINT=unix://$root/berth.sock
	manifests=$root/manifests state=$root/berthlet logs=$root/logs

	[ -n "${BERTH_DEMO_BIN:-}" ] || GO=$go hack/needs-go.sh
	containers=yes tree=kernel
	probe=/sys/fs/cgroup/cpuset # of v1
	[ -d "$probe" ] || probe=/sys/fs/cgroup
	if [ "`id -u`" != 0 ] || ! mkdir "$probe/$cgroup-probe" 2>/dev/null; then
		without "user `id -un` may make no containers, or no cgroups"
	else
		rmdir "$probe/$cgroup-probe"
		if [ -n "${BERTH_DEMO_BIN:-}" ]; then
			[ -x "$bin/berthlet" ] || without "there is no $bin/berthlet"
		else
			compiler=`$go env CC 2>/dev/null || true`
			command -v "${compiler%% *}" >/dev/null ||
				without "there is no C compiler, ${compiler:-cc}, for berthlet (Debian: apt-get install gcc libc6-dev)"
		fi
	fi
	[ -n "${BERTH_DEMO_BIN:-}" ] || build
	mkdir -p "$manifests" "$root/images/probe"
	[ -z "$containers" ] || cp "$bin/probe" "$root/images/probe/"
	if [ "$cpus" -lt 2 ]; then
		echo "one CPU: it is reserved for the system, so no pod can have a CPU of its own; the pods that ask for one are rejected"
	fi

	echo "The demo takes a few seconds, on a busy machine up to a minute; each step may take $limit s at most."
	say "berthd starts; berthlet starts and runs the pods of a folder; all files are below $root"
	start_daemon
	start_agent
	run berthctl topology

	say "A device plugin registers, as it would with a kubelet"
	plugin -plugin-directory "$root/device-plugins" -resource example.com/gpu -devices 'gpu0@0 gpu1@0' >"$root/plugin.log" 2>&1 &
	plugin=$!
	registered() { berthctl get resources -o json | grep -q '"allocatable": *2'; }
	await "the device plugin registers" registered
	run berthctl get resources

	say "A pod on the shared CPUs"
	begin web - 64Mi

	say "A pod with an exclusive CPU and a GPU; pod web leaves this CPU before pod trainer starts"
	begin trainer 1 128Mi 1
	[ -z "$containers" ] || where web trainer

	say "What the runtime gets, to start the container"
	[ "$cpus" -lt 2 ] || run berthctl allocate trainer main

	say "A pod that does not fit is rejected: what is missing, which pod holds it, which change would help"
	begin greedy $((cpus > 2 ? cpus - 1 : 1)) 64Mi 2
	run berthctl explain greedy

	say "All pods"
	[ -z "$containers" ] || run berthlet status --state-dir "$state"
	run berthctl get pods
	run berthctl get cpus

	say "berthd and berthlet are killed and started again; the containers keep running"
	held() { berthctl get containers --no-headers; }
	before=`held`
	kill -KILL "$daemon" $agent
	wait "$daemon" $agent 2>/dev/null || true
	start_daemon
	start_agent
	if [ "`held`" = "$before" ]; then echo "the same pods, CPUs and devices as before"; else echo "something changed!"; exit 1; fi
	[ -z "$containers" ] || where web trainer
	run berthctl ledger check

	say "The manifests are removed: containers end, cgroups are removed, CPUs and devices are free"
	if [ -n "$containers" ]; then
		run rm "$manifests/greedy.yaml" "$manifests/trainer.yaml" "$manifests/web.yaml"
		gone() { [ -z "`field web 4``field trainer 4``field greedy 4`" ]; }
		await "the pods are gone" gone
		kill -TERM "$agent"
		await "berthlet ends" ended "$agent"
		wait "$agent" 2>/dev/null || { cat "$root/berthlet.log"; exit 1; }
		agent=""
	else
		run berthctl remove trainer || [ "$cpus" -lt 2 ]
		run berthctl remove web
	fi
	run berthctl get pods

	kill -TERM "$daemon" "$plugin"
	await "berthd ends" ended "$daemon"
	wait "$daemon" 2>/dev/null || { cat "$root/berthd.log"; exit 1; }
	wait "$plugin" 2>/dev/null || true
	daemon="" plugin=""
	mounts=`awk -v root="$root/" 'index($5, root) == 1 {print $5}' /proc/self/mountinfo`
	cleanup
	trap - EXIT
	left=`cgroup_dirs`
	[ -z "$left$mounts" ] && [ ! -e "$root" ] || { echo "left behind: $root $left $mounts"; exit 1; }
	say "Nothing is left behind"
}

main
