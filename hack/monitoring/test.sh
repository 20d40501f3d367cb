#!/usr/bin/env bash
# Checks deploy/monitoring with promtool, and runs a Prometheus that scrapes a berthd and evaluates
# every rule and every query of the dashboard. Both are built from hack/tools/prometheus, without the
# service discovery of clouds.
#
#   hack/monitoring/test.sh [FOLDER]     FOLDER has prometheus and promtool already
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-}
if [ -z "$folder" ]; then
	folder=$(mktemp -d)
	trap 'rm -rf "$folder"' EXIT
	CGO_ENABLED=0 go build -C hack/tools/prometheus -tags remove_all_sd -o "$folder/" tool
fi
BERTH_PROMETHEUS=$folder go test -count=1 -v ./hack/monitoring
