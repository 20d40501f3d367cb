#!/bin/sh
# Runs after an installation or an upgrade of the package @NAME@. An installation starts no unit, because the
# configuration comes first. An upgrade restarts running units; pods keep running.
set -e
if [ "@NAME@" = berthd ] && command -v systemd-sysusers >/dev/null; then
	systemd-sysusers berth.conf
	systemd-tmpfiles --create berth.conf || true
fi
if [ -d /run/systemd/system ] && [ -n "@UNITS@" ]; then
	systemctl daemon-reload
	for unit in @UNITS@; do
		case $unit in *.service) systemctl try-restart "$unit" ;; esac
	done
fi
