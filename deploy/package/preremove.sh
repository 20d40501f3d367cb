#!/bin/sh
# Runs before a removal, and does nothing before an upgrade (deb: upgrade, rpm: 1).
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ]; then
		systemctl disable --now berthlet.service berth-nri.service berthd.service berthd.socket || true
	fi
	;;
esac
