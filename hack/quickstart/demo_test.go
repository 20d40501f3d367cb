package quickstart

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// TestDemo runs the demo to its end, and interrupts it. An interruption while the demo removes what it has made changes
// nothing: it leaves no process, cgroup, mount or file behind.
func TestDemo(t *testing.T) {
	t.Parallel()
	bin := programs(t)
	for name, row := range map[string]struct {
		at     string // the line of the output at which the demo is interrupted; empty for not at all
		always bool   // it is interrupted again and again until it has ended
		code   int
	}{
		"to its end":                       {},
		"interrupted twice at the start":   {at: "# A device plugin registers", code: 130},
		"interrupted twice with pods":      {at: "# A pod that does not fit", code: 130},
		"interrupted twice after restarts": {at: "# The manifests are removed", code: 130},
		"interrupted without an end":       {at: "# All pods", always: true, code: 130},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A short path: sockets are below it.
			tmp, err := os.MkdirTemp("", "demo")
			if err == nil {
				err = os.Chmod(tmp, 0o755)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer os.RemoveAll(tmp)
			ctx, stop := context.WithTimeout(t.Context(), 5*time.Minute)
			defer stop()
			cmd := exec.CommandContext(ctx, "bash", "../demo.sh")
			cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
			cmd.Env = append(os.Environ(), "BERTH_DEMO_BIN="+bin, "TMPDIR="+tmp, "BERTH_DEMO_LIMIT=300")
			// As a terminal's foreground processes, which get its signals together.
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			cmd.Stderr = cmd.Stdout
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			interrupt := func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
			reading, read := context.WithCancel(ctx)
			var again sync.WaitGroup
			var text strings.Builder
			lines := bufio.NewScanner(io.TeeReader(out, &text))
			interrupted := false
			for lines.Scan() {
				if row.at == "" || interrupted || !strings.HasPrefix(lines.Text(), row.at) {
					continue
				}
				interrupted = true
				interrupt()
				interrupt()
				if row.always {
					again.Go(func() { _ = nodetest.Await(reading, func() bool { interrupt(); return false }) })
				}
			}
			// A process group that may be gone is not interrupted.
			read()
			again.Wait()
			err = cmd.Wait()
			code := 0
			if exit := new(exec.ExitError); errors.As(err, &exit) {
				code = exit.ExitCode()
			}
			if code != row.code || row.at != "" && !interrupted {
				t.Errorf("exit code %d (%v), want %d\n%s", code, err, row.code, text.String())
			}
			left, err := filepath.Glob(filepath.Join(tmp, "*"))
			if err != nil || len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
			if row.code == 0 && !strings.Contains(text.String(), "Nothing is left behind") {
				t.Error(text.String())
			}
			_, root, _ := strings.Cut(text.String(), "all files are below ")
			root, _, _ = strings.Cut(root, "\n")
			if dirs := nodetest.Cgroups(filepath.Base(root)); root == "" || len(dirs) > 0 {
				t.Errorf("cgroups of %q are left: %q", root, dirs)
			}
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil || strings.Contains(string(mounts), tmp) {
				t.Errorf("mounts are left below %s, %v", tmp, err)
			}
		})
	}
}
