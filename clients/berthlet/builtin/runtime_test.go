//go:build linux && cgo

package builtin_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"github.com/berthd/berth/clients/berthlet/builtin"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/container/containertest"
	"github.com/berthd/berth/hack/testing/nodetest"
)

// TestMain lets the test binary be a keeper and the first process of containers,
// as berthlet's binary is.
func TestMain(m *testing.M) {
	if os.Getenv(onThread) != "" {
		fmt.Println(stays())
		return
	}
	if builtin.Child() {
		return
	}
	if os.Getenv(onVersion2) != "" {
		if err := mountVersion2(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	programs.Remove()
	os.Exit(code)
}

// onThread makes the test binary report whether the main goroutine stays on the first thread.
const onThread = "BUILTIN_TEST_ON_THREAD"

// stays tries to get the first thread for another goroutine while this one waits.
func stays() bool {
	for range 1000 {
		got := make(chan bool)
		go func() {
			runtime.LockOSThread() // for good
			got <- unix.Gettid() == os.Getpid()
		}()
		if <-got {
			return false
		}
	}
	return true
}

// TestInitStaysOnFirstThread: from another thread, execve(2) would let a container's first process look like a zombie for a
// moment, and what reads its state would take it for ended.
func TestInitStaysOnFirstThread(t *testing.T) {
	t.Parallel()
	for first, want := range map[string]string{"init": "true", "other": "false"} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], first)
		cmd.Env = []string{onThread + "=1"}
		out, err := cmd.CombinedOutput()
		if err != nil || strings.TrimSpace(string(out)) != want {
			t.Errorf("%s: %q, %v; want %s", first, out, err, want)
		}
	}
}

// onVersion2 makes the test binary see a tree of version 2 where the machine has
// version 1. It has next to no controllers, which does not matter here: they are
// berthd's.
const onVersion2 = "BUILTIN_TEST_ON_VERSION_2"

func mountVersion2() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to ourselves: %w", err)
	}
	if err := unix.Mount("none", "/sys/fs/cgroup", "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroup2: %w", err)
	}
	return nil
}

// TestVersion2 runs the tests on the other version of cgroups.
func TestVersion2(t *testing.T) {
	t.Parallel()
	needRoot(t)
	if cgroups.IsCgroup2UnifiedMode() {
		t.Skip("needs cgroups of version 1 to be the other version: the other tests have run on version 2")
	}
	cmd := exec.Command("/proc/self/exe", "-test.v",
		"-test.run=^(TestRuntime|TestInside|TestHostNamespaces|TestDevices|TestTakenOver|TestLostKeeper)$")
	cmd.Env = append(os.Environ(), onVersion2+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS: TestDevices")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// programs are the root file system of the tests.
var programs = nodetest.NewPrograms(map[string]string{"root/probe": "hack/probe"})

// needRoot skips tests that need root's rights, with the kernel's error for
// another program.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		_, err := builtin.New(builtin.Options{Dir: t.TempDir()})
		t.Skipf("needs root: %v", err)
	}
	if err := rights(); err != nil {
		t.Skipf("needs a root that may make namespaces and cgroups: %v", err)
	}
}

// rights tries what root may not do in a container without privileges.
var rights = sync.OnceValue(func() error {
	cmd := exec.Command("true")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if err := cmd.Run(); err != nil {
		return err
	}
	top := "/sys/fs/cgroup"
	if !cgroups.IsCgroup2UnifiedMode() {
		top += "/cpuset"
	}
	probe, err := os.MkdirTemp(top, "builtintest-probe")
	if err != nil {
		return err
	}
	return os.Remove(probe)
})

const timeout = time.Minute

type bench struct {
	*builtin.Runtime
	dir, image, cgroup string
	changed            chan string
}

// open makes a runtime with a root file system, a directory and a cgroup of its
// own, and checks in the end that nothing is left.
func open(t *testing.T) *bench {
	t.Helper()
	needRoot(t)
	built, err := programs.Dir()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "builtin")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{dir: dir, image: filepath.Join(built, "root"), cgroup: "/" + filepath.Base(dir), changed: make(chan string, 100)}
	b.Runtime = b.again(t)
	t.Cleanup(func() {
		b.Stop()
		for _, left := range []string{"containers", "run", "sandboxes"} {
			if entries, err := os.ReadDir(filepath.Join(dir, left)); err != nil || len(entries) > 0 {
				t.Errorf("left in %s: %v, %v", left, entries, err)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		// A cgroup of a container is an error, and the one of all may be there.
		for _, left := range nodetest.Cgroups(b.cgroup) {
			if filepath.Base(left) != filepath.Base(b.cgroup) {
				t.Errorf("cgroup %s is left", left)
			}
		}
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		if err := nodetest.RemoveCgroups(ctx, b.cgroup); err != nil {
			t.Error(err)
		}
	})
	return b
}

// again opens the runtime's directory another time, as after a restart.
func (b *bench) again(t *testing.T) *builtin.Runtime {
	t.Helper()
	r, err := builtin.New(builtin.Options{
		Dir: b.dir, Changed: func(uid string) { b.changed <- uid }, Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// said waits until a container has written something. The probe does so when it
// listens.
func said(ctx context.Context, s container.Spec) error {
	return nodetest.Await(ctx, func() bool {
		info, err := os.Stat(s.LogPath)
		return err == nil && info.Size() > 0
	})
}

func TestRuntime(t *testing.T) {
	t.Parallel()
	needRoot(t)
	containertest.Run(t, func(t *testing.T) containertest.Bench {
		b := open(t)
		return containertest.Bench{
			Runtime: b.Runtime, Image: b.image, Program: "/probe", Changed: b.changed,
			CgroupPath: func(name string) string { return b.cgroup + "/" + name },
			Listening:  said,
		}
	})
}
