#!/bin/sh
# After an installation or an upgrade. No unit is started by it: a node's agent is started
# when its configuration is right. A berthd that runs is replaced by the new one; pods go on.
set -e
if command -v systemd-sysusers >/dev/null; then
	systemd-sysusers berth.conf
	systemd-tmpfiles --create berth.conf || true
fi
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	systemctl try-restart berthd.service berth-nri.service berthlet.service
fi
