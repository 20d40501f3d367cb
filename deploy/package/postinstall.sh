#!/bin/sh
# Runs after an installation or an upgrade. An installation starts no unit, because the
# configuration comes first. An upgrade restarts running units; pods keep running.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers berth.conf
	systemd-tmpfiles --create berth.conf || true
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart berthd.service berth-nri.service berthlet.service
fi
