package quickstart

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// blocks gives the commands of a page: its code blocks without a language, but those that show output.
func blocks(t *testing.T, page string) (out []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	var block []string
	in, shell := false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "```") && !in:
			in, shell, block = true, line == "```", nil
		case line == "```":
			if in = false; shell && len(block) > 0 && !strings.HasPrefix(block[0], "$ ") {
				out = append(out, strings.Join(block, "\n")+"\n")
			}
		case in:
			block = append(block, line)
		}
	}
	return out
}

// reader is a machine on which a reader tries commands: with directories of its own in place of those that berth writes to, and
// processes of its own.
type reader struct {
	t        *testing.T
	dir, bin string
}

func newReader(t *testing.T, files map[string]string) *reader {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root: this test needs a mount namespace, and cgroups")
	}
	bin := programs(t)
	dir, err := os.MkdirTemp("", "reader")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// Root needs no sudo, and may not have it.
	files["bin/sudo"] = "#!/bin/sh\n[ \"$1\" != -E ] || shift\nexec \"$@\"\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return &reader{t, dir, bin}
}

// alone hides what the machine has where berth writes by default.
const alone = `set -e
mount --make-rprivate /
mount -t proc proc /proc
for d in /run /var/lib; do mount -t tmpfs -o mode=755 tmpfs $d; done
mkdir -p /run/lock
`

// run runs commands as they stand, each of which has to succeed, and gives their output.
func (r *reader) run(commands string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", alone+"set -x\n"+commands)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(r.dir, "bin")+":"+r.bin+":"+os.Getenv("PATH"))
	// The end of the first process is the end of all.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

// tried ends the berthd of a page, its first job, also where another command fails.
const tried = "trap 'kill %1; wait %1' EXIT\n"

const pod = `apiVersion: v1
kind: Pod
metadata: {name: web, uid: web}
spec:
  containers:
  - name: main
    image: web
    resources: {limits: {cpu: 1, memory: 64Mi}}
`

// TestPages runs the commands of the pages for agents, for device plugins and for rejected pods, as written.
func TestPages(t *testing.T) {
	gpu := "#!/bin/sh\n[ \"$1\" != --plugin-directory ] || set -- -dir \"$2\"\nexec plugin \"$@\" -resource example.com/gpu -devices gpu0@0,gpu1@0\n"
	for _, row := range []struct {
		page  string
		files map[string]string
		// then says what holds after the commands, also of what happens in the background.
		then string
		want []string
	}{
		{"agent.md", map[string]string{"pod.yaml": pod}, "berthctl get pods -o name\n", []string{"default/web admitted", "pod/web"}},
		{"plugin.md", map[string]string{"pod.yaml": pod, "gpu-plugin": gpu}, "until berthctl get devices -o name | grep gpu0; do :; done\ngrep testsuite report.xml\n", []string{"device/example.com/gpu/gpu0", "0 warned, 0 failed", "<testsuite name"}},
	} {
		t.Run(row.page, func(t *testing.T) {
			r := newReader(t, row.files)
			commands := blocks(t, row.page)
			if len(commands) == 0 {
				t.Fatal("the page has no commands")
			}
			out := r.run(tried + strings.Join(commands, "") + row.then + "kill %1\nwait %1\n[ ! -e /run/berth-try ]\ntrap - EXIT\n")
			for _, want := range row.want {
				if !strings.Contains(out, want) {
					t.Errorf("the output lacks %q:\n%s", want, out)
				}
			}
		})
	}
}
