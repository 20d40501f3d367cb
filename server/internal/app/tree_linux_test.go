package app_test

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	apiconfig "github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/metrics"
	"github.com/berthd/berth/server/internal/system/real"
)

// childEnv marks the process that runs a test in a mount namespace of its own.
const childEnv = "BERTH_TEST_CHILD"

// TestMissingController takes the controller cpuset out of this machine's tree, for
// one process: berthd does not start there, `berthd config validate` reports it before,
// and both name the controller.
func TestMissingController(t *testing.T) {
	t.Parallel()
	if os.Getenv(childEnv) == "" {
		c := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		c.Env = append(os.Environ(), childEnv+"=1")
		c.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		out, err := c.CombinedOutput()
		switch {
		case errors.Is(err, unix.EPERM):
			t.Skipf("needs a mount namespace of its own (uid %d): %v", os.Getuid(), err)
		case err != nil:
			t.Errorf("%v:\n%s", err, out)
		case strings.Contains(string(out), "--- SKIP"):
			t.Skipf("in the child:\n%s", out)
		}
		return
	}
	c, _, err := config.Load(config.Sources{Flags: func(c *apiconfig.Config) error {
		c.RootDir, c.Node.KernelTunables = t.TempDir(), apiconfig.TunablesIgnore
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := app.Validate(real.System(), c); err != nil {
		t.Skipf("the tree of this machine lacks something by itself: %v", err)
	}
	hideCpuset(t, c.Cgroups.Mount)
	refused := func(who string, err error) {
		t.Helper()
		if errdefs.ClassOf(err) != errdefs.Unsupported || !strings.Contains(err.Error(), "without the controllers") ||
			!strings.Contains(err.Error(), `"cpuset"`) {
			t.Errorf("%s: %v (%s), want class unsupported and the controller", who, err, errdefs.ClassOf(err))
		}
	}
	refused("validate", app.Validate(real.System(), c))
	_, err = app.Build(t.Context(), c, app.Environment{
		Log: slog.New(slog.DiscardHandler), Now: time.Now, System: real.System(), Metrics: metrics.New(),
	})
	refused("start", err)

	// What is not used is not checked.
	c.Cgroups.Tree = apiconfig.TreeMemory
	if err := app.Validate(real.System(), c); err != nil {
		t.Errorf("validate with a tree in memory: %v", err)
	}
	c.Cgroups.Tree, c.Machine = apiconfig.TreeKernel, "1s1n4c"
	if err := app.Validate(real.System(), c); err != nil {
		t.Errorf("validate for another machine: %v", err)
	}
}

// hideCpuset unmounts the controller on v1 and leaves it out of the list on v2.
func hideCpuset(t *testing.T, mount string) {
	t.Helper()
	const all = "cgroup.controllers"
	text, err := os.ReadFile(filepath.Join(mount, all))
	if errors.Is(err, os.ErrNotExist) {
		if err := unix.Unmount(filepath.Join(mount, "cpuset"), unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	fewer := filepath.Join(t.TempDir(), all)
	if err := os.WriteFile(fewer, []byte(strings.ReplaceAll(string(text), "cpuset ", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(fewer, filepath.Join(mount, all), "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}
