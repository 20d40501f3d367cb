#!/usr/bin/env bash
# Packs the Helm chart as `helm package` does: dist/berth-VERSION.tgz, or the file that is named. The same
# sources give the same bytes.
#
#   hack/chart.sh [FILE]
set -euo pipefail
cd "$(dirname "$0")/.."
file=${1:-dist/berth-$(cat api/version/VERSION).tgz}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 1793491200)}
mkdir -p "$(dirname "$file")"
tar -C deploy/helm --sort=name --mtime="@$SOURCE_DATE_EPOCH" --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner --format=ustar -c berth |
	gzip -9n >"$file"
