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
	;;
esac
