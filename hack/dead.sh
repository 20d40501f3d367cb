#!/usr/bin/env bash
# Finds functions that no program under server/ and clients/ reaches. Packages of
# test helpers (named ...test) and generated code are left out, and so is what
# hack/dead.txt names.
set -euo pipefail
cd "$(dirname "$0")/.."

module=$(go list -m)
found=$(go tool -modfile=hack/tools/lint/go.mod deadcode \
	-filter "^$module/(managers|server|clients|api/(access|config|convert))(/|$)" \
	-f '{{range .Funcs}}{{println $.Path .Name .Position}}{{end}}' ./server/... ./clients/... |
	awk 'NF { print }' | sed "s|^$module/||")
awk '
	FNR == NR { if ($0 !~ /^#/ && NF) known[$1 " " $2] = 1; next }
	$1 ~ /test$/ || ($1 " *") in known { next }
	($1 " " $2) in known { next }
	{ print "unreachable: " $0; bad = 1 }
	END { if (bad) { print "delete it, or name it in hack/dead.txt with the reason why it stays"; exit 1 } }
' hack/dead.txt <(printf '%s\n' "$found" | awk 'NF')
