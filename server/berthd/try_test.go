package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/hack/testing/nodetest"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/try"
)

// startTry runs berthd --try, and waits until it has said what to type.
func startTry(t *testing.T, env []string, args ...string) *daemon {
	t.Helper()
	n := &node{t: t, driver: cgroup.Cgroupfs}
	d := &daemon{node: n, log: nodetest.Log(filepath.Join(t.TempDir(), "log"))}
	if os.Getenv(driverEnv) == string(cgroup.Systemd) {
		n.driver, args = cgroup.Systemd, append(args, "--cgroup-driver", string(cgroup.Systemd))
	}
	cmd := exec.Command(os.Args[0], append([]string{"--try"}, args...)...)
	cmd.Env = append(append(os.Environ(), asDaemon+"=1"), env...)
	d.Process = nodetest.Start(t, cmd, d.log)
	n.eventually("the try answers", func() bool {
		select {
		case <-d.Ended:
			t.Fatalf("it ended:\n%s", d.log)
		default:
		}
		_, rest, said := strings.Cut(d.log.String(), "export BERTH_ENDPOINT=unix://")
		path, _, line := strings.Cut(rest, "\n")
		n.root = filepath.Dir(path)
		return said && line
	})
	record, err := recordOf(n.root)
	if err != nil {
		t.Fatal(err)
	}
	n.cgroup, n.kernel = strings.TrimPrefix(record.Cgroup, "/"), !record.Memory
	d.connect()
	// Only where the test has failed is something left.
	t.Cleanup(func() { _ = d.End(syscall.SIGTERM) })
	return d
}

// recordOf is try.ReadRecord, which refuses what another user could change.
func recordOf(dir string) (r try.Record, err error) {
	text, err := os.ReadFile(filepath.Join(dir, "try.json"))
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	return r, err
}

// nothingIsLeft fails the test if a try has left its directory, its cgroup or a process.
func (d *daemon) nothingIsLeft(p *process) {
	d.t.Helper()
	d.eventually("the directory is gone, or that of another test's try", func() bool {
		record, err := recordOf(d.root)
		_, there := os.Lstat(d.root)
		return errors.Is(there, fs.ErrNotExist) || err == nil && record.Cgroup != "/"+d.cgroup
	})
	if dirs := d.cgroupDirs(); len(dirs) > 0 {
		d.t.Errorf("cgroups are left: %q", dirs)
	}
	if p == nil || !d.kernel {
		return
	}
	var status *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &status) || status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		d.t.Errorf("the process of the container ended with %v, want a kill", err)
	}
}

// TestTryLeavesNothing: a try ends with all that it has made, whatever ends it.
func TestTryLeavesNothing(t *testing.T) {
	t.Parallel()
	for name, signals := range map[string][]syscall.Signal{
		"an interrupt": {syscall.SIGINT}, "a termination": {syscall.SIGTERM}, "the end of the terminal": {syscall.SIGHUP},
		"two interrupts": {syscall.SIGINT, syscall.SIGINT},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := startTry(t, nil, "--node-fit=false")
			d.admitted(burstable("a"))
			p := d.stopped()
			d.run(p, "a", "main", "1")
			p.works()
			for _, s := range signals {
				if err := d.Cmd.Process.Signal(s); err != nil {
					t.Fatal(err)
				}
			}
			if err := d.Wait(); err != nil {
				t.Errorf("%v\n%s", err, d.log)
			}
			d.nothingIsLeft(p)
		})
	}
}

// TestTryWithoutDirectory: a try ends when its directory is removed, and leaves nothing of what berthd has made again.
func TestTryWithoutDirectory(t *testing.T) {
	t.Parallel()
	d := startTry(t, nil, "--node-fit=false")
	d.admitted(burstable("a"))
	// Until it succeeds: berthd may make a part again meanwhile.
	d.eventually("the directory is removed", func() bool { return os.RemoveAll(d.root) == nil })
	if err := d.Wait(); err == nil {
		t.Error("a try without its directory ended as if its user had ended it")
	}
	d.says("--try ends because " + d.root + " was removed")
	d.nothingIsLeft(nil)
}

// TestTryNeedsCgroupRoot: a try makes no cgroup above its own, since it would stay, and takes no other place than the flag's.
func TestTryNeedsCgroupRoot(t *testing.T) {
	t.Parallel()
	if !cgroupsWritable() {
		t.Skip("needs a writable cgroup tree with the controller cpuset")
	}
	cmd := exec.Command(os.Args[0], "--try", "--cgroup-root", "/berthdtest-none")
	cmd.Env = append(os.Environ(), asDaemon+"=1")
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "/berthdtest-none: make it, or leave out --cgroup-root") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestTryAfterKill: berthd ends with the try that has started it, and the next try removes what is left.
func TestTryAfterKill(t *testing.T) {
	t.Parallel()
	d := startTry(t, nil, "--node-fit=false")
	d.admitted(burstable("a"))
	p := d.stopped()
	d.run(p, "a", "main", "1")
	p.works()
	d.kill()
	d.eventually("the lock is free", func() bool {
		f, err := os.Open(filepath.Join(d.root, "try.json"))
		if errors.Is(err, fs.ErrNotExist) {
			return true // a try of another test was the next one
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) == nil
	})
	next := startTry(t, nil)
	next.stop()
	next.nothingIsLeft(nil)
	d.nothingIsLeft(p)
}

// TestTryOfUser: a user without rights gets a directory of its own, and cgroups in memory.
func TestTryOfUser(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("not root: this test changes the user")
	}
	const user = 65534
	dir, err := os.MkdirTemp("", "user")
	if err == nil {
		err = os.Chown(dir, user, user)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := startTry(t, []string{fmt.Sprintf("%s=%d", asUser, user), "XDG_RUNTIME_DIR=" + dir}, "--node-fit=false")
	if d.root != filepath.Join(dir, "berth-try") || d.kernel || !strings.Contains(d.log.String(), "cgroups are only in berthd's memory") {
		t.Errorf("it is in %s, with cgroups of the kernel: %t\n%s", d.root, d.kernel, d.log)
	}
	d.admitted(burstable("a"))
	d.stop()
	d.nothingIsLeft(nil)
}

// TestTryOfMachine: a try can have another machine, and the settings of a kubelet's file that concern only the decisions.
func TestTryOfMachine(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nreservedSystemCPUs: 0-1\ncpuManagerPolicy: static\n" +
		"failSwapOn: true\nsystemReservedCgroup: /system.slice\nenforceNodeAllocatable: [pods, system-reserved]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d := startTry(t, nil, "--machine", "2s1n8c2t", "--kubelet-config", file)
	d.admitted(guaranteed("a", 8, 0))
	if got := d.pods()["a"].GetContainers()[0].GetCpus().GetList(); got != "2-5,18-21" || d.kernel {
		t.Errorf("the container has the CPUs %q; cgroups of the kernel: %t", got, d.kernel)
	}
	d.says("node.systemReservedCgroup: has no effect with --try")
	d.stop()
	d.nothingIsLeft(nil)
}
