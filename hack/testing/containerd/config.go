package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
)

// directories are the settings of paths that containerd 1 and 2 spell alike.
const directories = `root = "DIR/root"
state = "DIR/state"
[debug]
  level = "warn"
[grpc]
  address = "DIR/s"
[ttrpc]
  address = "DIR/t"
`

// runcOptions end the options of runc, which they share too.
const runcOptions = `
      BinaryName = "DIR/oci"
      Root = "DIR/runc"
      SystemdCgroup = SYSTEMD
      NoPivotRoot = NOPIVOT
`

// nri switches NRI on; containerd 1.6 does not know it, and ignores it.
const nri = `[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "DIR/n"
  plugin_path = "DIR/nri"
  plugin_config_path = "DIR/nri"
  plugin_registration_timeout = "60s"
  plugin_request_timeout = "20s"
`

// config2 is the configuration of containerd 2, config1 that of containerd 1.
const config2 = "version = 3\n" + directories + nri + `[plugins.'io.containerd.internal.v1.opt']
  path = "DIR/opt"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "SNAPSHOTTER"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "` + PauseImage + `"
[plugins.'io.containerd.cri.v1.runtime']
  netns_mounts_under_state_dir = true
  cdi_spec_dirs = ["DIR/cdi"]
  restrict_oom_score_adj = RESTRICTED
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["DIR/cni/bin"]
    conf_dir = "DIR/cni/conf"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]` + runcOptions

const config1 = "version = 2\n" + directories + nri + `[plugins."io.containerd.internal.v1.opt"]
  path = "DIR/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = RESTRICTED
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "DIR/cni/bin"
    conf_dir = "DIR/cni/conf"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "SNAPSHOTTER"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]` + runcOptions

// network is a plugin of CNI 0.4.0 that sets nothing up, and says that it has:
// containerd requires an address for every pod.
const network = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
ADD) echo '{"cniVersion":"0.4.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],"ips":[{"version":"4","address":"192.0.2.2/24","interface":0}]}' ;;
esac
`

// common are the files that containerd and CRI-O both read.
var common = map[string]string{
	"cni/conf/10-none.conflist": `{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}`,
	"cni/bin/none":              network,
	"cni/bin/loopback":          network,
	"cdi/none/keep":             "",
}

// configure writes what containerd reads into its directory.
func configure(version, programs, dir string, systemd bool) error {
	text := strings.NewReplacer(
		"DIR", dir, "PROGRAMS", programs, "SYSTEMD", fmt.Sprint(systemd), "SNAPSHOTTER", snapshotter(dir),
		"RESTRICTED", fmt.Sprint(!MayLowerScores()), "NOPIVOT", fmt.Sprint(inFirstFileSystem()),
	).Replace(version)
	if err := write(dir, map[string]string{"config.toml": text}); err != nil {
		return err
	}
	link := filepath.Join(dir, "oci")
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(filepath.Join(programs, "runc"), link)
}

// standIn is called in place of runc. Of each sandbox it makes a file with its id, before there is a process of it.
const standIn = `#!/bin/sh
case " $* " in
*" create "*)
	for argument; do
		[ "$previous" != --bundle ] || bundle=$argument
		previous=$argument
	done
	if grep -q '"io.kubernetes.cri.container-type":"sandbox"' "$bundle/config.json"; then : > DIR/sandboxes/"$argument"; fi
	DELAY
esac
exec PROGRAMS/runc "$@"
`

// SlowDown has one in so many containers made later than the others, by some seconds. It records sandboxes, too.
func (d *Daemon) SlowDown(every int, seconds float64) error {
	return d.replaceRunc(fmt.Sprintf("[ $(($$ %% %d)) -ne 0 ] || sleep %g", every, seconds))
}

// RecordSandboxes has Sandbox know the sandboxes that are made from now on.
func (d *Daemon) RecordSandboxes() error { return d.replaceRunc("") }

// Sandbox reports whether a container was made as a sandbox, even if it has never run.
func (d *Daemon) Sandbox(id string) bool {
	_, err := os.Stat(filepath.Join(d.dir, "sandboxes", id))
	return err == nil
}

// replaceRunc has the script called in place of runc, with a command before each creation.
func (d *Daemon) replaceRunc(delay string) error {
	if err := os.MkdirAll(filepath.Join(d.dir, "sandboxes"), 0o755); err != nil {
		return err
	}
	script := standIn
	if d.CRIO {
		script = softened
	}
	text := strings.NewReplacer("DELAY", delay, "EDITS", softening(), "PROGRAMS", d.programs, "DIR", d.dir).Replace(script)
	path := filepath.Join(d.dir, "oci")
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// snapshotter reports how images become file systems: by overlays, or by copies where
// the directory cannot hold an overlay.
func snapshotter(dir string) string {
	at := func(name string) string { return filepath.Join(dir, "overlay", name) }
	defer func() { _ = os.RemoveAll(filepath.Join(dir, "overlay")) }()
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.MkdirAll(at(name), 0o755); err != nil {
			return "native"
		}
	}
	options := "lowerdir=" + at("lower") + ",upperdir=" + at("upper") + ",workdir=" + at("work")
	if err := syscall.Mount("overlay", at("merged"), "overlay", 0, options); err != nil {
		return "native"
	}
	_ = syscall.Unmount(at("merged"), 0)
	return "overlayfs"
}

// MayLowerScores reports whether this process may make the out-of-memory killer spare
// others, which takes CAP_SYS_RESOURCE (proc(5)). Without, containers get the score
// of containerd where they should get a lower one.
func MayLowerScores() bool {
	const path = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(path)
	var score int
	if err == nil {
		_, err = fmt.Sscan(string(text), &score)
	}
	if err != nil || os.WriteFile(path, []byte(strconv.Itoa(score-1)), 0) != nil {
		return false
	}
	return os.WriteFile(path, text, 0) == nil
}

// inFirstFileSystem reports whether the root is what the kernel unpacked at boot,
// from which pivot_root(2) is not possible.
func inFirstFileSystem() bool {
	mounts, _ := mountinfo.GetMounts(mountinfo.FSTypeFilter("rootfs"))
	return slices.ContainsFunc(mounts, func(m *mountinfo.Info) bool { return m.Mountpoint == "/" })
}
