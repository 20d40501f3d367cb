#!/usr/bin/env bash
# The rehearsal of a release: hack/release.sh rehearse [DIST].
#
# It publishes with keys made for this, to a registry and directories of this machine, and then does what a stranger does who has only
# these: checks the signature, gets the packages with apt, the Go module with go get and go install, and the images by their digests.
# DIST is a release that is made already; otherwise it is made twice, and compared. Needs what hack/apt.sh needs, and apt. With
# BERTH_CLUSTER, the directory of hack/cluster's programs, and as root, the images run in its containerd.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(cat api/version/VERSION)
work=$(mktemp -d)
registry="" runtime=""
# shellcheck disable=SC2329 # the trap calls it
end() {
	for pid in $registry $runtime; do kill "$pid" 2>/dev/null || true; done
	wait 2>/dev/null || true
	awk -v dir="$work/" 'index($5, dir) == 1 {print $5}' /proc/self/mountinfo | sort -r | xargs -r umount -l
	chmod -R u+w "$work"
	rm -rf "$work"
}
trap end EXIT
say() { printf '\n# %s\n' "$*"; }

dist=${1:-}
if [ -z "$dist" ]; then
	say "The release is made twice, and compared"
	KEEP=$work/dist hack/release.sh same
	dist=$work/dist
else
	cp -r "$dist" "$work/dist"
	dist=$work/dist
fi

say "Keys, a registry and directories of this machine"
go build -C hack/tools/publish -o "$work/publish" .
mkdir -p "$work/keys" "$work/apt" "$work/proxy"
"$work/publish" key -to "$work/keys"
export GNUPGHOME=$work/gnupg DOCKER_CONFIG=$work/docker # and no passwords of registries
mkdir -m 0700 "$GNUPGHOME"
gpg --batch --quiet --passphrase '' --quick-gen-key 'berth rehearsal <rehearsal@example.org>' ed25519 sign never
"$work/publish" registry >"$work/registry" &
registry=$!
until [ -s "$work/registry" ]; do kill -0 "$registry"; sleep 0.05; done
address=$(cat "$work/registry")

say "The release is published"
DIST=$dist RELEASE_KEY=$work/keys/minisign.key REGISTRY=$address/berth APT_DIR=$work/apt APT_KEY=rehearsal@example.org \
	hack/release.sh publish | tee "$work/published"
"$work/publish" module -to "$work/proxy" -commit HEAD -version "v$version"
gpgconf --kill all

say "A stranger checks the signature"
"$work/publish" verify -public "$work/keys/minisign.pub" "$dist"
cp -r "$dist" "$work/changed"
echo >>"$(find "$work/changed" -name '*.deb' | sort | head -n 1)"
if "$work/publish" verify -public "$work/keys/minisign.pub" "$work/changed"; then
	echo "a changed package was accepted" >&2
	exit 1
fi

say "apt gets the packages, and checks who has signed them"
mkdir -p "$work/root/var/lib/dpkg" "$work/root/etc/apt/apt.conf.d" "$work/root/var/lib/apt/lists/partial" "$work/root/var/cache/apt/archives/partial"
touch "$work/root/var/lib/dpkg/status"
echo "deb [signed-by=$work/apt/berth.gpg] file://$work/apt stable main" >"$work/root/etc/apt/sources.list"
apt=(-o "Dir=$work/root" -o "Dir::State::status=$work/root/var/lib/dpkg/status" -o "APT::Architecture=amd64" -o "APT::Sandbox::User=")
apt-get "${apt[@]}" update
(cd "$work/root" && apt-get "${apt[@]}" download berthd berth-client berth-kubernetes berthlet && ls ./*.deb)

say "go get and go install, with nothing of this repository but the proxy"
mkdir "$work/outside"
cat >"$work/outside/main.go" <<'GO'
package main

import (
	"context"
	"fmt"

	"github.com/berthd/berth/clients/berth"
)

func main() {
	_, err := berth.Dial(context.Background(), "/nowhere/berth.sock", berth.Options{})
	fmt.Println("dialled:", err == nil)
}
GO
(
	cd "$work/outside"
	export GOPROXY=file://$work/proxy,${GOPROXY:-https://proxy.golang.org} GONOSUMDB=github.com/berthd/berth GOFLAGS=-modcacherw GOBIN=$work/outside/bin
	export GOMODCACHE=$work/modules
	# What others publish need not be fetched again.
	cache=$(env -u GOMODCACHE go env GOMODCACHE)/cache/download
	[ ! -d "$cache" ] || GOPROXY=file://$work/proxy,file://$cache,${GOPROXY#*,}
	export GOPROXY
	go mod init example.org/agent
	go get "github.com/berthd/berth/clients/berth@v$version"
	go run .
	go install "github.com/berthd/berth/clients/berthctl@v$version"
	bin/berthctl --version
)

say "The images, by their digests"
grep "^$address/" "$work/published" >"$work/digests"
[ "$(wc -l <"$work/digests")" = 4 ] || { echo "expected the digests of four images" >&2; exit 1; }
if [ -z "${BERTH_CLUSTER:-}" ] || [ "$(id -u)" != 0 ]; then
	cat "$work/digests"
	echo "they are not run: that needs root and BERTH_CLUSTER"
	exit
fi
PATH=$BERTH_CLUSTER:$PATH
printf 'version = 3\nroot = "%s"\nstate = "%s"\n[grpc]\naddress = "%s"\n' "$work/c/root" "$work/c/state" "$work/c/sock" >"$work/containerd.toml"
containerd --config "$work/containerd.toml" >"$work/containerd.log" 2>&1 &
runtime=$!
ctr=(ctr --address "$work/c/sock")
until "${ctr[@]}" version >/dev/null 2>&1; do kill -0 "$runtime"; sleep 0.1; done
mapfile -t images <"$work/digests"
for image in "${images[@]}"; do
	"${ctr[@]}" images pull --plain-http "$image" >/dev/null
	program=${image%@*} program=${program##*/}
	"${ctr[@]}" run --rm "$image" "$program" "/usr/bin/$program" --version | grep -F "$program version $version,"
done
say "Rehearsed"
