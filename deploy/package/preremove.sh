#!/bin/sh
# Runs before a removal of the package @NAME@, and does nothing before an upgrade (deb: upgrade, rpm: 1).
set -e
case "$1" in
remove | 0)
	if [ -d /run/systemd/system ] && [ -n "@UNITS@" ]; then
		systemctl disable --now @UNITS@ || true
	fi
	;;
esac
