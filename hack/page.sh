#!/usr/bin/env bash
# Checks the scripts of the page (api/page/static) with TypeScript. They are plain JavaScript with
# types in comments, so nothing is built. Changes nothing but hack/tools/page/node_modules.
set -euo pipefail
cd "$(dirname "$0")/tools/page"

if ! command -v npm >/dev/null; then
	if [ "${CI:-}" = true ]; then
		echo "page: npm is missing; install Node.js" >&2
		exit 1
	fi
	echo "skipped: npm is not in PATH, so the scripts of the page are not checked"
	exit 0
fi
if ! cmp -s package-lock.json node_modules/.checked-lock; then
	npm ci --no-audit --no-fund --ignore-scripts --loglevel error
	cp package-lock.json node_modules/.checked-lock
fi
node_modules/.bin/tsc -p .
