#!/usr/bin/env bash
# Builds berth's programs into a folder, as they are released: without the paths of this
# machine and data for debuggers and symbols, to be loaded at any address (PIE), and without cgo but for berthlet, whose own
# runtime needs it. The same sources give the same bytes (hack/supply.sh same).
#
#   hack/build.sh DIR [PROGRAM...]
#
# The tag grpcnotrace leaves out gRPC's pages for a debugger. Their templates call methods by name, and the linker then keeps every method of
# every type.
#
# BUILDMODE=exe links all programs statically: a PIE needs the loader of a C library, which
# container images do not have.
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
shift
hack/needs-go.sh
[ $# -gt 0 ] || set -- berthd berthctl kubectl-berth berth-nri berth-dra berthlet
# Said at once, and not after minutes by the linker.
cc=$(${GO:-go} env CC)
if [[ " $* " == *" berthlet "* ]] && ! command -v "${cc%% *}" >/dev/null; then
	echo "missing: ${cc%% *}, a C compiler, which berthlet needs (Debian: apt-get install gcc libc6-dev); CC names another one." >&2
	echo "Without one: hack/build.sh $dir berthd berthctl kubectl-berth berth-nri berth-dra" >&2
	exit 3
fi
# The commit is recorded where git tells it.
vcs=false
if git rev-parse -q --verify HEAD >/dev/null 2>&1; then vcs=auto; fi
for program; do
	cgo=0 mode=${BUILDMODE:-pie} from=./clients/$program flags="-s -w" tags=grpcnotrace
	case $program in
	berthd) from=./server/berthd ;;
	berth-nri) from=./clients/nri ;;
	berth-dra) from=./clients/dra ;;
	berthlet)
		cgo=1
		# Names of users and hosts are looked up by Go: a static C library cannot.
		[ "$mode" = pie ] || flags="-s -w -linkmode external -extldflags -static" tags=grpcnotrace,netgo,osusergo
		;;
	esac
	CGO_ENABLED=$cgo ${GO:-go} build -trimpath -buildvcs=$vcs -buildmode="$mode" -tags "$tags" -ldflags="$flags" -o "$dir/$program" "$from"
done
