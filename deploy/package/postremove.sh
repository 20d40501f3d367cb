#!/bin/sh
# Runs after a removal of the package @NAME@. deb packages keep what the programs have written until they are purged;
# rpm packages have no purge and keep it.
set -e
if [ -d /run/systemd/system ] && [ -n "@UNITS@" ]; then
	systemctl daemon-reload
fi

# unless_used DIR... removes directories that others may use, if they are empty.
unless_used() {
	for dir; do rmdir "$dir" 2>/dev/null || true; done
}

case "$1:@NAME@" in
purge:berthlet)
	# The file systems of containers that still run are mounted there.
	if grep -q ' /var/lib/berthlet/' /proc/self/mounts; then
		echo "berthlet: containers still run. End their processes, and remove /var/lib/berthlet then." >&2
	else
		rm -rf /var/lib/berthlet
	fi
	unless_used /etc/berth/manifests /etc/berth /var/log/pods
	;;
purge:berthd)
	# Another berthd may use them, such as that of a DaemonSet. A lock of a process that has ended is free.
	if [ -e /var/lib/berth/berthd.lock ] && ! command -v flock >/dev/null; then
		echo "berthd: flock (util-linux) is missing, so nobody knows whether another berthd runs: /var/lib/berth and /run/berth stay." >&2
	elif [ -e /var/lib/berth/berthd.lock ] && ! flock --nonblock /var/lib/berth/berthd.lock true; then
		echo "berthd: another berthd runs with /var/lib/berth, so it stays, and /run/berth." >&2
	else
		rm -rf /var/lib/berth /run/berth
	fi
	unless_used /etc/berth \
		/var/lib/kubelet/device-plugins /var/lib/kubelet/plugins_registry /var/lib/kubelet/pod-resources /var/lib/kubelet
	# The cgroups above those of the pods, if they are empty. With a kubelet they are the kubelet's.
	if [ ! -d /var/lib/kubelet ]; then
		for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
			for dir in kubepods.slice/kubepods-besteffort.slice kubepods.slice/kubepods-burstable.slice kubepods.slice \
				kubepods/besteffort kubepods/burstable kubepods; do
				unless_used "$tree/$dir"
			done
		done
		# A slice whose cgroup is gone has no process.
		if [ -d /run/systemd/system ] && [ ! -d /sys/fs/cgroup/kubepods.slice ] && [ ! -d /sys/fs/cgroup/systemd/kubepods.slice ]; then
			systemctl stop kubepods.slice 2>/dev/null || true
		fi
	fi
	;;
esac
