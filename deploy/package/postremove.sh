#!/bin/sh
# Runs after a removal. deb packages keep the ledger until they are purged; rpm packages have
# no purge and keep it.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
case "$1" in
purge)
	rm -rf /var/lib/berth /run/berth
	# The file systems of containers that still run are mounted there.
	if grep -q ' /var/lib/berthlet/' /proc/self/mounts; then
		echo "berth: containers of berthlet still run. End their processes, and remove /var/lib/berthlet then." >&2
	else
		rm -rf /var/lib/berthlet
	fi
	# Directories that others may use stay, unless they are empty.
	for dir in /etc/berth/manifests /etc/berth /var/log/pods \
		/var/lib/kubelet/device-plugins /var/lib/kubelet/plugins_registry /var/lib/kubelet/pod-resources /var/lib/kubelet; do
		rmdir "$dir" 2>/dev/null || true
	done
	# The cgroups above those of the pods, if they are empty. With a kubelet they are the kubelet's.
	if [ ! -d /var/lib/kubelet ]; then
		for tree in /sys/fs/cgroup /sys/fs/cgroup/*; do
			for dir in kubepods.slice/kubepods-besteffort.slice kubepods.slice/kubepods-burstable.slice kubepods.slice \
				kubepods/besteffort kubepods/burstable kubepods; do
				rmdir "$tree/$dir" 2>/dev/null || true
			done
		done
		# A slice whose cgroup is gone has no process.
		if [ -d /run/systemd/system ] && [ ! -d /sys/fs/cgroup/kubepods.slice ] && [ ! -d /sys/fs/cgroup/systemd/kubepods.slice ]; then
			systemctl stop kubepods.slice 2>/dev/null || true
		fi
	fi
	;;
esac
