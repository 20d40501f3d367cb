package quickstart

import (
	"context"
	"go/format"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/importer"
)

// block is a code block of a page.
type block struct {
	language string
	lines    []string
}

// codeOf gives the code blocks of a page.
func codeOf(t *testing.T, page string) (out []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	in := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && !in:
			in, out = true, append(out, block{language: language})
		case line == "```":
			in = false
		case in:
			last := &out[len(out)-1]
			last.lines = append(last.lines, line)
		}
	}
	return out
}

// blocks gives the commands of a page: its code blocks without a language, but those that show output.
func blocks(t *testing.T, page string) (out []string) {
	t.Helper()
	for _, b := range codeOf(t, page) {
		if b.language == "" && len(b.lines) > 0 && !strings.HasPrefix(b.lines[0], "$ ") {
			out = append(out, strings.Join(b.lines, "\n")+"\n")
		}
	}
	return out
}

// filesOf adds to files those that a page shows: YAML whose first line is a comment with its name, and a program in Go, as the
// executable agent.
func filesOf(t *testing.T, page string, files map[string]string) {
	t.Helper()
	for _, b := range codeOf(t, page) {
		text := strings.Join(b.lines, "\n") + "\n"
		if b.language == "go" {
			files["agent"] = compiled(t, text)
		}
		if name, named := strings.CutPrefix(text, "# "); named && b.language == "yaml" {
			name, _, _ = strings.Cut(name, "\n")
			files[name] = text
		}
	}
}

// maxProgram is how many lines a program of a page may have.
const maxProgram = 60

// compiled builds a program of a page in a module of its own.
func compiled(t *testing.T, text string) string {
	t.Helper()
	if n := strings.Count(text, "\n"); n > maxProgram {
		t.Errorf("the program has %d lines, the limit is %d", n, maxProgram)
	}
	if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
		t.Errorf("the program is not formatted: %v", err)
	}
	dir := importer.Module(t, "../..", text)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", "agent", ".")
	cmd.Dir, cmd.Env = dir, append(importer.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the program does not build: %v\n%s", err, out)
	}
	program, err := os.ReadFile(filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	return string(program)
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
	files["bin/sudo"] = "#!/bin/sh\n[ \"$1\" != -v ] || exit 0\n[ \"$1\" != -E ] || shift\nexec \"$@\"\n"
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	root, err := filepath.Abs("../..")
	if err == nil {
		err = os.Symlink(filepath.Join(root, "deploy"), filepath.Join(dir, "deploy"))
	}
	if err != nil {
		t.Fatal(err)
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

// TestReadmeTry runs berthd as the README says, beside a kubelet: what berthd serves in place of a kubelet's sockets. It answers, leaves
// nothing, and the kubelet's sockets stay as they are.
func TestReadmeTry(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	start := regexp.MustCompile(`(?m)^berthd --try [^#\n]*`).FindString(string(text))
	if start == "" {
		t.Fatal("the README does not show berthd --try")
	}
	r := newReader(t, map[string]string{"config.yaml": strings.Replace(kubelet, "failSwapOn: false", "failSwapOn: true", 1)})
	const node = `
mkdir /var/lib/kubelet
cp config.yaml /var/lib/kubelet/config.yaml
berthd --root-dir /var/lib/kubelet --listen /run/kubelet.sock --cgroup-tree memory &
berthctl get node --wait-ready --endpoint /run/kubelet.sock
sockets() { ls -i /var/lib/kubelet/*/kubelet.sock; }
before=$(sockets)
`
	const then = ` &
trap 'kill %2; wait %2' EXIT
export BERTH_ENDPOINT=unix:///run/berth-try/berth.sock
berthctl get node --wait-ready
kill %2
wait %2
trap - EXIT
[ ! -e /run/berth-try ]
[ "$(sockets)" = "$before" ]
berthctl get node --endpoint /run/kubelet.sock
`
	r.run(node + start + then)
}

// TestPages runs the commands of the pages for agents, for device plugins and for rejected pods, as written.
func TestPages(t *testing.T) {
	const gpu = "#!/bin/sh\nexec plugin \"$@\"\n"
	for _, row := range []struct {
		page  string
		files map[string]string
		// then says what holds after the commands, also of what happens in the background.
		then string
		want []string
	}{
		{"agent.md", map[string]string{}, "[ -z \"$(berthctl get pods -o name)\" ]\n", []string{
			"would be admitted", `Cpus_allowed_list:\t\d+\n`, "ended: <nil>",
		}},
		{"plugin.md", map[string]string{"gpu-plugin": gpu}, "until berthctl get devices -o name | grep gpu0; do :; done\ngrep testsuite report.xml\n", []string{"device/example.com/gpu/gpu0", "gpu0 .* default/device/main", `admitted  main .* yes  0  `, "0 warned, 0 failed", "<testsuite name"}},
	} {
		t.Run(row.page, func(t *testing.T) {
			filesOf(t, row.page, row.files)
			r := newReader(t, row.files)
			commands := blocks(t, row.page)
			if len(commands) == 0 {
				t.Fatal("the page has no commands")
			}
			out := r.run(tried + strings.Join(commands, "") + row.then + ended + "[ ! -e /run/berth-try ]\n")
			for _, want := range row.want {
				if !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("the output lacks %q:\n%s", want, out)
				}
			}
		})
	}
}
