#!/bin/sh
# After a removal. What berth knows of pods stays until the package is purged (deb); rpm has
# no purge, and leaves it.
set -e
if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
fi
case "$1" in
purge)
	rm -rf /var/lib/berth /run/berth
	;;
esac
