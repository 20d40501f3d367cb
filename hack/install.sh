#!/usr/bin/env bash
# Installs berth from what hack/build.sh has built.
#
#   hack/install.sh BIN
#
# Environment: PREFIX, /usr/local unless set; DESTDIR, a folder to put in front of every
# path, for packages; SYSCONFDIR, /etc unless set. Configuration that is there already stays.
set -euo pipefail
bin=$(cd "$1" && pwd)
cd "$(dirname "$0")/.."
go=${GO:-go}
prefix=${PREFIX:-/usr/local} etc=${SYSCONFDIR:-/etc} dest=${DESTDIR:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# put MODE FILE PATH installs a file.
put() { install -D -m "$1" "$2" "$dest$3"; }
# here MODE FILE PATH installs one that names programs, with where they are here.
here() {
	sed "s|/usr/bin/|$prefix/bin/|g; s|/usr/share/|$prefix/share/|g" "$2" >"$work/here"
	put "$1" "$work/here" "$3"
}

for p in berthd berthctl berthlet berth-nri berth-dra; do
	put 755 "$bin/$p" "$prefix/bin/$p"
done
for unit in deploy/systemd/*.service deploy/systemd/*.socket; do
	here 644 "$unit" "$prefix/lib/systemd/system/$(basename "$unit")"
done
for file in deploy/systemd/drop-ins/*.conf; do
	put 644 "$file" "$prefix/share/berth/drop-ins/$(basename "$file")"
done
for file in deploy/monitoring/*; do
	put 644 "$file" "$prefix/share/berth/monitoring/$(basename "$file")"
done
for file in deploy/examples/*.yaml; do
	put 644 "$file" "$prefix/share/berth/examples/$(basename "$file")"
done
put 644 deploy/sysusers.d/berth.conf "$prefix/lib/sysusers.d/berth.conf"
put 644 deploy/tmpfiles.d/berth.conf "$prefix/lib/tmpfiles.d/berth.conf"
[ -e "$dest$etc/berth/berthd.yaml" ] || put 644 deploy/berthd.yaml "$etc/berth/berthd.yaml"

# The manual: sections 1 and 8 from the programs' commands, 5 from the page of all fields.
mkdir -p "$work/man"
$go run -tags man ./clients/berthctl manual "$work/man"
$go run -tags man ./server/berthd manual "$work/man"
$go run -tags man ./clients/nri manual "$work/man"
$go run -tags man ./clients/dra manual "$work/man"
CGO_ENABLED=1 $go run -tags man ./clients/berthlet manual "$work/man"
{
	printf '%% "BERTHD.YAML" "5" "Nov 2026" "berth" "berth"\n\n# NAME\n\nberthd.yaml - configuration of berthd\n\n'
	cat docs/configuration.md
} >"$work/berthd.yaml.md"
$go run github.com/cpuguy83/go-md2man/v2 -in "$work/berthd.yaml.md" -out "$work/man/berthd.yaml.5"
for page in "$work"/man/*; do
	put 644 "$page" "$prefix/share/man/man${page##*.}/$(basename "$page")"
done

# Completions are the programs' own. Those of this machine's kind are run; they are the same for others.
native=$bin
if ! "$bin/berthctl" version --client >/dev/null 2>&1; then
	native=$work/native
	hack/build.sh "$native" berthd berthctl berth-nri berth-dra
	$go build -o "$native/berthlet" ./clients/berthlet
fi
for p in berthd berthctl berthlet berth-nri berth-dra; do
	"$native/$p" completion bash >"$work/bash"
	"$native/$p" completion zsh >"$work/zsh"
	"$native/$p" completion fish >"$work/fish"
	put 644 "$work/bash" "$prefix/share/bash-completion/completions/$p"
	put 644 "$work/zsh" "$prefix/share/zsh/site-functions/_$p"
	put 644 "$work/fish" "$prefix/share/fish/vendor_completions.d/$p.fish"
done

for file in README.md CHANGELOG.md SECURITY.md LICENSE; do
	put 644 "$file" "$prefix/share/doc/berth/$file"
done
for file in docs/*.md; do
	put 644 "$file" "$prefix/share/doc/berth/$file"
done
if [ -e "$bin/berth.cdx.json" ]; then
	put 644 "$bin/berth.cdx.json" "$prefix/share/doc/berth/berth.cdx.json"
	put 644 "$bin/LICENSES.txt" "$prefix/share/doc/berth/LICENSES.txt"
fi
if [ -z "$dest" ]; then
	echo "installed; now: systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload && systemctl enable --now berthd"
fi
