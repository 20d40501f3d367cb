// Package containerd runs a real containerd for tests: privately, with everything
// under one directory, without a network and without a registry.
//
// Words:
//
//   - programs: a folder with containerd 1 or 2, its shim, ctr and runc, as
//     hack/containerd/test.sh builds them from their Go modules, or finds installed.
//   - image: one static binary, as a root file system, under several names.
//   - shim: containerd's process beside each pod, which outlives it. A daemon that
//     is closed has ended those too.
//
// Not here: anything that a fake in memory can show as well (hack/cri).
package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Variable is the environment variable that names the folder of the programs.
const Variable = "BERTH_CONTAINERD"

// PauseImage is what holds the namespaces of pods.
const PauseImage = "docker.io/library/pause:latest"

// Daemon is a containerd that runs, or can.
type Daemon struct {
	// Socket is where it serves CRI, NRI where plugins connect.
	Socket, NRI string
	// Old says that it is containerd 1, which does not tell its cgroup driver.
	Old           bool
	programs, dir string
	cmd           *exec.Cmd
	done          chan error
	conn          *grpc.ClientConn
}

// config2 is the configuration of containerd 2, config1 that of containerd 1, which
// has no NRI here.
const config2 = `version = 3
root = "DIR/root"
state = "DIR/state"
[debug]
  level = "warn"
[grpc]
  address = "DIR/s"
[ttrpc]
  address = "DIR/t"
[plugins.'io.containerd.nri.v1.nri']
  disable = false
  socket_path = "DIR/n"
  plugin_path = "DIR/nri"
  plugin_config_path = "DIR/nri"
  plugin_request_timeout = "20s"
[plugins.'io.containerd.internal.v1.opt']
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
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "PROGRAMS/runc"
      Root = "DIR/runc"
      SystemdCgroup = SYSTEMD
      NoPivotRoot = NOPIVOT
`

const config1 = `version = 2
root = "DIR/root"
state = "DIR/state"
[debug]
  level = "warn"
[grpc]
  address = "DIR/s"
[ttrpc]
  address = "DIR/t"
[plugins."io.containerd.internal.v1.opt"]
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
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "PROGRAMS/runc"
      Root = "DIR/runc"
      SystemdCgroup = SYSTEMD
      NoPivotRoot = NOPIVOT
`

// network is a plugin of CNI 0.4.0 that sets nothing up, and says that it has:
// containerd wants an address for every pod.
const network = `#!/bin/sh
case "$CNI_COMMAND" in
VERSION) echo '{"cniVersion":"0.4.0","supportedVersions":["0.3.1","0.4.0"]}' ;;
ADD) echo '{"cniVersion":"0.4.0","interfaces":[{"name":"'$CNI_IFNAME'","sandbox":"'$CNI_NETNS'"}],"ips":[{"version":"4","address":"192.0.2.2/24","interface":0}]}' ;;
esac
`

// oldVersion finds containerd 1 in what it says of itself.
var oldVersion = regexp.MustCompile(`containerd v?1\.`)

// New prepares a containerd in an empty directory, whose path has to be short
// (unix(7)). systemd is the cgroup driver, in place of cgroupfs.
func New(programs, dir string, systemd bool) (*Daemon, error) {
	d := &Daemon{Socket: filepath.Join(dir, "s"), NRI: filepath.Join(dir, "n"), programs: programs, dir: dir}
	version, err := exec.Command(filepath.Join(programs, "containerd"), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask containerd for its version: %w", err)
	}
	config := config2
	if d.Old = oldVersion.Match(version); d.Old {
		config = config1
	}
	text := strings.NewReplacer(
		"DIR", dir, "PROGRAMS", programs, "SYSTEMD", fmt.Sprint(systemd), "SNAPSHOTTER", snapshotter(dir),
		"RESTRICTED", fmt.Sprint(!MayLowerScores()), "NOPIVOT", fmt.Sprint(inFirstFileSystem()),
	).Replace(config)
	for name, content := range map[string]string{
		"config.toml":               text,
		"cni/conf/10-none.conflist": `{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "none"}]}`,
		"cni/bin/none":              network,
		"cni/bin/loopback":          network,
		"cdi/none/keep":             "",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			return nil, err
		}
	}
	d.conn, err = grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return d, err
}

// snapshotter tells how images become file systems: by overlays, or by copies where
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

// MayLowerScores tells whether this process may make the out-of-memory killer spare
// others, which takes CAP_SYS_RESOURCE (proc(5)). Without, containers get the score
// of containerd where they should get a lower one.
func MayLowerScores() bool {
	const path = "/proc/self/oom_score_adj"
	text, err := readAll(path)
	var score int
	if err == nil {
		_, err = fmt.Sscan(text, &score)
	}
	if err != nil || os.WriteFile(path, []byte(strconv.Itoa(score-1)), 0) != nil {
		return false
	}
	return os.WriteFile(path, []byte(text), 0) == nil
}

// inFirstFileSystem tells whether the root is what the kernel unpacked at boot,
// from which nobody can pivot away (pivot_root(2)).
func inFirstFileSystem() bool {
	text, _ := readAll("/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		mount, source, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(mount); len(fields) > 4 && fields[4] == "/" && strings.HasPrefix(source, "rootfs ") {
			return true
		}
	}
	return false
}

// Start starts it and waits until it answers.
func (d *Daemon) Start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	d.cmd = exec.Command(filepath.Join(d.programs, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.Env = append(os.Environ(), "PATH="+d.programs+":"+os.Getenv("PATH"))
	if err := d.cmd.Start(); err != nil {
		return err
	}
	cmd, done := d.cmd, make(chan error, 1)
	d.done = done
	go func() { done <- cmd.Wait() }()
	// It serves before its CRI service does.
	return d.until(ctx, "containerd serves", func() (bool, error) {
		answer, err := criv1.NewRuntimeServiceClient(d.conn).Status(ctx, &criv1.StatusRequest{}, grpc.WaitForReady(true))
		if err != nil {
			return false, nil
		}
		for _, c := range answer.GetStatus().GetConditions() {
			if (c.GetType() == "RuntimeReady" || c.GetType() == "NetworkReady") && !c.GetStatus() {
				return false, nil
			}
		}
		return true, nil
	})
}

// until waits for a condition.
func (d *Daemon) until(ctx context.Context, what string, done func() (bool, error)) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case err := <-d.done:
			d.done <- err
			return fmt.Errorf("%s: it ended: %w", what, err)
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, ctx.Err())
		}
	}
}

// Kill ends containerd at once; shims and containers go on.
func (d *Daemon) Kill() error {
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := <-d.done
	d.done <- err // for whoever asks next
	return nil
}

// Log gives the end of what it has written.
func (d *Daemon) Log() string {
	text, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-20000):])
}

// Load makes an image of a static binary under each of the names, for the pause
// container too. The binary becomes /probe.
func (d *Daemon) Load(ctx context.Context, binary string, names ...string) error {
	archive := filepath.Join(d.dir, "image.tar")
	f, err := os.Create(archive)
	if err == nil {
		err = errors.Join(writeImage(f, binary, names), f.Close())
	}
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(d.programs, "ctr"), "--address", d.Socket, "--namespace", "k8s.io", "images", "import", archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image: %w: %s", err, out)
	}
	// CRI hears of it a moment later.
	return d.until(ctx, "the images are there", func() (bool, error) {
		for _, name := range append(names, PauseImage) {
			there, err := criv1.NewImageServiceClient(d.conn).ImageStatus(ctx, &criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: name}})
			if err != nil || there.GetImage() == nil {
				return false, err
			}
		}
		return true, nil
	})
}

// Close removes every pod, ends containerd, and tells what it could not undo.
func (d *Daemon) Close(ctx context.Context) error {
	errs := []error{d.removePods(ctx), d.Kill(), d.conn.Close(), d.endShims(ctx)}
	for _, dir := range mounts(d.dir) {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

func (d *Daemon) removePods(ctx context.Context) error {
	cri := criv1.NewRuntimeServiceClient(d.conn)
	pods, err := cri.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	errs := []error{err}
	for _, p := range pods.GetItems() {
		_, err := cri.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: p.GetId()})
		if err == nil {
			_, err = cri.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// endShims ends the shims of this containerd. Usually there are none any more.
func (d *Daemon) endShims(ctx context.Context) error {
	for {
		left := shims(d.dir)
		if len(left) == 0 {
			return nil
		}
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		timer := time.NewTimer(20 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("end the shims %v: %w", left, ctx.Err())
		}
	}
}

// shims lists the shims that belong to a directory, by their command lines.
func shims(dir string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, err := readAll(path)
		args := strings.Split(text, "\x00")
		if err != nil || len(args) == 0 || filepath.Base(args[0]) != "containerd-shim-runc-v2" {
			continue
		}
		for i, arg := range args {
			if arg == "-address" && i+1 < len(args) && args[i+1] == filepath.Join(dir, "s") {
				var pid int
				if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
					pids = append(pids, pid)
				}
			}
		}
	}
	return pids
}

func readAll(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	return string(text), err
}

// mounts lists the mounts below a directory, the innermost first.
func mounts(dir string) (paths []string) {
	text, _ := readAll("/proc/self/mountinfo")
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			paths = append([]string{fields[4]}, paths...)
		}
	}
	return paths
}
