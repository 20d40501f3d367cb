#!/usr/bin/env bash
# Ends the cluster of hack/cluster/up.sh and removes all that it has made.
#
# BERTH_UP_DIR (/run/berth-cluster) has the state.
set -euo pipefail

dir=$(realpath -m "${BERTH_UP_DIR:-/run/berth-cluster}") # as up.sh and the kernel spell it
[ -d "$dir" ] || { echo "no cluster is up: $dir does not exist" >&2; exit 1; }
pid=$(cat "$dir/pid" 2>/dev/null || true)
# The number may be another program's by now.
if [ -n "$pid" ] && [ "$(readlink "/proc/$pid/exe" 2>/dev/null)" = "$dir/cluster.test" ]; then
	kill -TERM "$pid"
	while kill -0 "$pid" 2>/dev/null; do sleep 0.1; done
fi
rm -rf "$dir"
