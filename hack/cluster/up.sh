#!/usr/bin/env bash
# A Kubernetes cluster that stays until hack/cluster/down.sh, for people who try something and for tests:
#
#   hack/cluster/up.sh N [crio]
#
# Each of the N nodes has namespaces, a containerd (or a CRI-O) and a kubelet of its own; the machine's network, files and kubelet are not
# touched. It prints the kubeconfig, and the sockets of each node: its runtime's, and NRI's. Images are loaded with
# ctr --address SOCKET --namespace k8s.io images import FILE. Needs what hack/cluster/test.sh needs, and for CRI-O what hack/containerd/crio.sh
# needs; the first build takes about fifteen minutes.
#
# BERTH_CLUSTER is the directory of the programs, if they are built already, and BERTH_CRIO that of CRI-O. BERTH_UP_DIR (/run/berth-cluster)
# has the state.
set -euo pipefail
dir=$(realpath -m "${BERTH_UP_DIR:-/run/berth-cluster}")
cd "$(dirname "$0")/../.."

case ${1:-} in
'' | *[!0-9]* | 0*) echo "${1:-nothing}: expected the number of nodes, as in: hack/cluster/up.sh 3" >&2; exit 2 ;;
esac
case ${2:-containerd} in
containerd | crio) ;;
*) echo "$2: expected containerd or crio" >&2; exit 2 ;;
esac
[ "$(id -u)" = 0 ] || { echo "a kubelet needs root: run it with sudo" >&2; exit 1; }
# Two at once would share it. Only its maker can make a directory.
mkdir -m 0700 "$dir" 2>/dev/null || { echo "$dir exists: a cluster is up, or was not ended; run hack/cluster/down.sh first" >&2; exit 1; }
pid=
# The cluster is in a session of its own, so it does not get the signals of a terminal.
end() {
	trap - ERR INT TERM
	if [ -n "$pid" ] && kill -TERM "$pid" 2>/dev/null; then wait "$pid" || true; fi
	rm -rf "$dir"
	exit 1
}
trap end ERR INT TERM

programs=${BERTH_CLUSTER:-$dir/programs}
[ -n "${BERTH_CLUSTER:-}" ] || hack/cluster/build.sh "$programs"
runtime=$programs
if [ "${2:-}" = crio ]; then
	runtime=${BERTH_CRIO:-$dir/crio}
	[ -n "${BERTH_CRIO:-}" ] || hack/containerd/crio.sh "$runtime"
fi
go test -c -o "$dir/cluster.test" ./hack/cluster
cd hack/cluster
BERTH_CLUSTER=$programs BERTH_CONTAINERD=$runtime BERTH_UP=$1 BERTH_UP_DIR=$dir \
	setsid "$dir/cluster.test" -test.run '^TestClusterStays$' -test.timeout 0 -test.v >"$dir/log" 2>&1 </dev/null &
pid=$!
echo "$pid" >"$dir/pid"
until [ -s "$dir/kubeconfig" ]; do
	if ! kill -0 "$pid" 2>/dev/null; then
		cat "$dir/log" >&2
		false
	fi
	sleep 0.2
done
trap - ERR INT TERM
echo "node runtime NRI"
cat "$dir/sockets"
echo "export KUBECONFIG=$dir/kubeconfig"
echo "kubectl: $programs/kubectl, ctr: $programs/ctr"
