package nodetest_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// timeout bounds everything that a test waits for.
const timeout = time.Minute

func TestPrograms(t *testing.T) {
	t.Setenv(nodetest.BuiltVariable, "")
	p := nodetest.NewPrograms(map[string]string{"root/probe": "hack/probe"})
	dir, err := p.Dir()
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(dir, "root", "probe"), "show").CombinedOutput(); err != nil {
		t.Errorf("what was built: %v: %s", err, out)
	}
	if again, err := p.Dir(); again != dir || err != nil {
		t.Errorf("the second time: %q, %v; want %q", again, err, dir)
	}
	p.Remove()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the tests: %v", err)
	}

	none := nodetest.NewPrograms(map[string]string{"x": "no/such/package"})
	defer none.Remove()
	if _, err := none.Dir(); err == nil || !strings.Contains(err.Error(), "build no/such/package: ") {
		t.Errorf("a package that is not there: %v", err)
	}

	built := t.TempDir()
	t.Setenv(nodetest.BuiltVariable, built)
	given := nodetest.NewPrograms(map[string]string{"x": "no/such/package"})
	if dir, err := given.Dir(); err != nil || dir != built {
		t.Errorf("programs that are built already: %q, %v", dir, err)
	}
	given.Remove()
	if _, err := os.Stat(built); err != nil {
		t.Errorf("programs of somebody else: %v", err)
	}
}

func TestProcess(t *testing.T) {
	t.Parallel()
	log := nodetest.Log(filepath.Join(t.TempDir(), "log"))
	first := nodetest.Start(t, exec.Command("sh", "-c", "echo first; exit 3"), log)
	var code *exec.ExitError
	if err := first.Wait(); !errors.As(err, &code) || code.ExitCode() != 3 {
		t.Errorf("the first one ended with %v", err)
	}
	if err := first.End(os.Kill); !errors.As(err, &code) || code.ExitCode() != 3 {
		t.Errorf("it has ended before: %v", err)
	}
	second := nodetest.Start(t, exec.Command("sh", "-c", "trap 'exit 0' TERM; echo second; while :; do sleep 0.01; done"), log)
	nodetest.Eventually(t, timeout, "the second one writes", func() bool { return log.String() == "first\nsecond\n" })
	select {
	case <-second.Ended:
		t.Error("it has ended by itself")
	default:
	}
	if err := second.End(syscall.SIGTERM); err != nil {
		t.Errorf("the second one: %v", err)
	}
}

func TestAwait(t *testing.T) {
	t.Parallel()
	looks := 0
	if err := nodetest.Await(t.Context(), func() bool { looks++; return looks == 3 }); err != nil || looks != 3 {
		t.Errorf("%d looks, %v", looks, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nodetest.Await(ctx, func() bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("in vain: %v", err)
	}
	if err := nodetest.Await(ctx, func() bool { return true }); err != nil {
		t.Errorf("what is so already: %v", err)
	}
}

// TestCgroups makes cgroups in some hierarchy, with a process that this one has to reap.
func TestCgroups(t *testing.T) {
	t.Parallel()
	hierarchy := "/sys/fs/cgroup/pids"
	if _, err := os.Stat(hierarchy); err != nil {
		hierarchy = "/sys/fs/cgroup"
	}
	top, err := os.MkdirTemp(hierarchy, "rigtest")
	if err != nil {
		t.Skipf("needs cgroups that can be written: %v", err)
	}
	path := "/" + filepath.Base(top)
	t.Cleanup(func() { _ = nodetest.RemoveCgroups(context.Background(), path) })
	inner := filepath.Join(top, "a")
	if err := os.MkdirAll(filepath.Join(inner, "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got, want := nodetest.Cgroups(path), []string{top, inner, filepath.Join(inner, "b")}; !slices.Equal(got, want) {
		t.Errorf("cgroups %v, want %v", got, want)
	}
	if got := nodetest.Cgroups("/"); len(got) > 0 {
		t.Errorf("the root is ours: %v", got)
	}

	sleeper := nodetest.Start(t, exec.Command("sleep", "infinity"), nodetest.Log(os.DevNull))
	defer func() { _ = sleeper.End(os.Kill) }()
	pid := strconv.Itoa(sleeper.Cmd.Process.Pid)
	if err := os.WriteFile(filepath.Join(inner, "cgroup.procs"), []byte(pid), 0o644); err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := nodetest.RemoveCgroups(over, path); !errors.Is(err, syscall.EBUSY) || !errors.Is(err, context.Canceled) {
		t.Errorf("a cgroup with a process: %v", err)
	}
	if got, want := nodetest.KillIn(path), []string{"process " + pid + " in " + inner}; !slices.Equal(got, want) {
		t.Errorf("killed %q, want %q", got, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := nodetest.RemoveCgroups(ctx, path); err != nil {
		t.Error(err)
	}
	if err := sleeper.Wait(); err == nil {
		t.Error("the process ended in good order")
	}
	if got := nodetest.Cgroups(path); len(got) > 0 {
		t.Errorf("left: %v", got)
	}
}
