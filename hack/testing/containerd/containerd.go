// Package containerd runs a real containerd, or a CRI-O, for tests: privately, with everything
// under one directory, without a network and without a registry.
//
// Words:
//
//   - programs: a folder with containerd 1 or 2, its shim, ctr and runc (or with crio, pinns and runc), as
//     hack/containerd/test.sh builds them from their Go modules, or finds installed.
//   - image: one static binary, as a root file system, under several names.
//   - shim: containerd's process beside each pod, which outlives it, but not the test.
//
// Not here: anything that a fake in memory can show as well (hack/testing/cri).
package containerd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// Variable is the environment variable that names the folder of the programs.
const Variable = "BERTH_CONTAINERD"

// Images: PauseImage is what holds the namespaces of pods, ProbeImage is hack/probe.
const (
	PauseImage = "docker.io/library/pause:latest"
	ProbeImage = "docker.io/library/probe:latest"
)

// timeout bounds the end of a daemon; it takes that long only where something fails.
const timeout = 5 * time.Minute

// Daemon is a containerd that runs, or can.
type Daemon struct {
	// Socket is where it serves CRI, NRI where plugins connect.
	Socket, NRI string
	// Cgroup is one for the cgroups of pods, which goes with the daemon.
	Cgroup string
	// Old means containerd 1, which does not report its cgroup driver. NoNRI means that it is too old for plugins of NRI.
	Old, NoNRI bool
	// CRIO means that it is CRI-O.
	CRIO bool
	// Spawn starts its programs; a test that has namespaces of its own replaces it.
	Spawn         func(*exec.Cmd) error
	programs, dir string
	storage       string // how CRI-O stores images
	cmd           *exec.Cmd
	done          chan error
	conn          *grpc.ClientConn
	closed        func() error
}

// oldVersion finds containerd 1 in what it says of itself.
var oldVersion = regexp.MustCompile(`containerd v?1\.`)

// tooOld finds the versions before 1.7.
var tooOld = regexp.MustCompile(`containerd v?1\.[0-6]\.`)

// Run runs a containerd with ProbeImage until the test ends.
func Run(t testing.TB) *Daemon {
	t.Helper()
	d := Prepare(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	programs := nodetest.NewPrograms(map[string]string{"probe": "hack/probe"})
	defer programs.Remove()
	built, err := programs.Dir()
	if err == nil {
		err = d.Start(ctx)
	}
	if err == nil {
		err = d.Load(ctx, filepath.Join(built, "probe"), ProbeImage)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Prepare makes a containerd for a test, which starts it; in the end all is removed that
// is left of it. systemd is the cgroup driver, in place of cgroupfs. A test is skipped
// where there is no containerd for it.
func Prepare(t testing.TB, systemd bool) *Daemon {
	t.Helper()
	programs := need(t)
	// Paths of sockets are short (unix(7)), those of t.TempDir are not.
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	d, err := prepare(programs, dir, systemd)
	if err != nil {
		t.Fatal(errors.Join(err, os.RemoveAll(dir)))
	}
	d.closed = sync.OnceValue(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		return errors.Join(d.close(ctx), os.RemoveAll(dir))
	})
	d.closeAfter(t)
	return d
}

// PrepareIn is Prepare in a directory that stays with images and pods, for a machine that is turned off
// after the test and booted again.
func PrepareIn(t testing.TB, dir string, systemd bool) *Daemon {
	t.Helper()
	programs := need(t)
	for _, name := range volatile {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	d, err := prepare(programs, dir, systemd)
	if err != nil {
		t.Fatal(err)
	}
	d.closed = sync.OnceValue(func() error { return errors.Join(d.Kill(), d.conn.Close()) })
	d.closeAfter(t)
	return d
}

// volatile is what a machine has on a file system in memory.
var volatile = []string{"state", "runc"}

// need skips a test without containerd or the rights for it, and returns the folder of the programs.
func need(t testing.TB) (programs string) {
	t.Helper()
	programs = os.Getenv(Variable)
	if programs == "" {
		t.Skipf("needs a containerd: %s names a folder with one; make test-all builds it", Variable)
	}
	if os.Geteuid() != 0 {
		t.Skipf("containerd needs root: the effective user is %d", os.Geteuid())
	}
	return programs
}

func (d *Daemon) closeAfter(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(d.log())
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Close ends it and its pods and removes what is left of it. The end of the test does that too.
func (d *Daemon) Close() error { return d.closed() }

func prepare(programs, dir string, systemd bool) (*Daemon, error) {
	d := &Daemon{
		Socket: filepath.Join(dir, "s"), NRI: filepath.Join(dir, "n"), Cgroup: "/berth-" + filepath.Base(dir),
		Spawn: (*exec.Cmd).Start, programs: programs, dir: dir,
	}
	if err := write(dir, common); err != nil {
		return nil, err
	}
	var err error
	if _, missing := os.Stat(crioProgram(programs)); missing == nil {
		d.CRIO = true
		err = d.configureCRIO(systemd)
	} else {
		err = d.configureContainerd(systemd)
	}
	if err != nil {
		return nil, fmt.Errorf("configure the runtime: %w", err)
	}
	d.conn, err = grpc.NewClient("unix://"+d.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	return d, err
}

// configureContainerd writes what containerd reads, by its version.
func (d *Daemon) configureContainerd(systemd bool) error {
	version, err := exec.Command(filepath.Join(d.programs, "containerd"), "--version").Output()
	if err != nil {
		return fmt.Errorf("get the version of containerd: %w", err)
	}
	d.NoNRI = tooOld.Match(version)
	config := config2
	if d.Old = oldVersion.Match(version); d.Old {
		config = config1
	}
	return configure(config, d.programs, d.dir, systemd)
}

// Start starts it and waits until it answers.
func (d *Daemon) Start(ctx context.Context) error {
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(d.programs, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	cmd.Env = os.Environ()
	if d.CRIO {
		cmd = exec.Command(crioProgram(d.programs), "--config", filepath.Join(d.dir, "config.toml"), "--config-dir", "")
		cmd.Env = d.crioEnvironment()
	}
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(cmd.Env, "PATH="+d.programs+":"+os.Getenv("PATH"))
	if err := d.Spawn(cmd); err != nil {
		return err
	}
	done := make(chan error, 1)
	d.cmd, d.done = cmd, done
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

// Kill ends containerd at once; shims and containers continue.
func (d *Daemon) Kill() error {
	if d.cmd == nil {
		return nil // it was never started
	}
	if err := d.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	err := <-d.done
	d.done <- err // for the next caller
	return nil
}

// Configure adds to its configuration from its next start on.
func (d *Daemon) Configure(text string) error {
	f, err := os.OpenFile(filepath.Join(d.dir, "config.toml"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// Slow lets plugins take more time, from its next start on: for an emulated machine. If a plugin is late, the clean-up of the
// sandbox may be too, and then containerd keeps a sandbox that neither runs nor is replaced.
func (d *Daemon) Slow() error {
	path := filepath.Join(d.dir, "config.toml")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	const usual, slow = `plugin_request_timeout = "20s"`, `plugin_request_timeout = "5m"`
	if !bytes.Contains(text, []byte(usual)) {
		return fmt.Errorf("%s has no %s", path, usual)
	}
	return os.WriteFile(path, bytes.Replace(text, []byte(usual), []byte(slow), 1), 0)
}

// log gives the end of what it has written.
func (d *Daemon) log() string {
	text, err := os.ReadFile(filepath.Join(d.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-20000):])
}

// Load makes an image of a static binary under each of the names, for the pause
// container too. The binary becomes /probe. Nothing is started by itself; as the pause image it waits.
func (d *Daemon) Load(ctx context.Context, binary string, names ...string) error {
	return d.LoadImages(ctx,
		Image{Names: names, Files: map[string]string{"probe": binary}},
		Image{Names: []string{PauseImage}, Entrypoint: []string{"/pause", "wait"}, Files: map[string]string{"pause": binary}},
	)
}

// LoadImages makes images of static binaries.
func (d *Daemon) LoadImages(ctx context.Context, images ...Image) error {
	archive := filepath.Join(d.dir, "image.tar")
	f, err := os.Create(archive)
	if err == nil {
		err = errors.Join(writeImages(f, images), f.Close())
	}
	if err != nil {
		return fmt.Errorf("write the images: %w", err)
	}
	importImages := d.importImages
	if d.CRIO {
		importImages = d.copyImages
	}
	if err := importImages(ctx, archive, images); err != nil {
		return err
	}
	// CRI hears of it a moment later.
	return d.until(ctx, "the images are there", func() (bool, error) {
		for _, image := range images {
			for _, name := range image.Names {
				there, err := criv1.NewImageServiceClient(d.conn).ImageStatus(ctx,
					&criv1.ImageStatusRequest{Image: &criv1.ImageSpec{Image: name}})
				if err != nil || there.GetImage() == nil {
					return false, err
				}
			}
		}
		return true, nil
	})
}

// importImages imports the images of an archive into containerd.
func (d *Daemon) importImages(ctx context.Context, archive string, _ []Image) error {
	cmd := exec.CommandContext(ctx, filepath.Join(d.programs, "ctr"), "--address", d.Socket, "--namespace", "k8s.io", "images", "import",
		archive)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the images: %w: %s", err, out)
	}
	return nil
}

// Process returns the process of a container.
func (d *Daemon) Process(ctx context.Context, id string) (pid int, err error) {
	status, err := criv1.NewRuntimeServiceClient(d.conn).ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		return 0, err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(status.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		return 0, fmt.Errorf("process of container %s: %v: %w", id, status.GetInfo(), err)
	}
	return info.PID, nil
}

// close removes every pod, ends containerd, and reports what it could not undo.
func (d *Daemon) close(ctx context.Context) error {
	if d.cmd == nil {
		return d.conn.Close() // it was never started
	}
	errs := []error{d.removePods(ctx), d.Kill(), d.conn.Close(), d.endShims(ctx), nodetest.RemoveCgroups(ctx, d.Cgroup)}
	for _, dir := range mounts(d.dir) {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
		}
	}
	return errors.Join(errs...)
}

// removePods removes all pods. The kubelet of a cluster may have been killed while the runtime removes one: then it is tried again.
func (d *Daemon) removePods(ctx context.Context) error {
	var last error
	err := nodetest.Await(ctx, func() bool {
		last = d.removePodsOnce(ctx)
		return last == nil || status.Code(last) == codes.Unavailable
	})
	return errors.Join(err, last)
}

func (d *Daemon) removePodsOnce(ctx context.Context) error {
	cri := criv1.NewRuntimeServiceClient(d.conn)
	pods, err := cri.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return err
	}
	var errs []error
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
	var left []int
	err := nodetest.Await(ctx, func() bool {
		left = shims(d.dir)
		for _, pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
	if err != nil {
		return fmt.Errorf("end the shims %v: %w", left, err)
	}
	return nil
}

// shims lists the shims that belong to a directory, by their command lines: those of containerd, and CRI-O's conmon.
func shims(dir string) (pids []int) {
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		args := strings.Split(string(text), "\x00")
		switch filepath.Base(args[0]) {
		case "containerd-shim-runc-v2", "conmon":
		default:
			continue
		}
		if slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, dir+"/") }) {
			var pid int
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// mounts lists the mounts at a directory and below, the innermost first.
func mounts(dir string) (paths []string) {
	below, _ := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	for _, m := range slices.Backward(below) {
		paths = append(paths, m.Mountpoint)
	}
	return paths
}
