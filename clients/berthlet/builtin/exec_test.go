//go:build linux && cgo

package builtin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/berthd/berth/clients/berthlet/builtin"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/errdefs"
)

// began starts a container of the pod u1, which ends with the test.
func (b *bench) began(t *testing.T, s container.Spec) {
	t.Helper()
	b.pod(t)
	must(t, b.Create(ctx(t), s))
	must(t, b.Start(ctx(t), s.ID))
	b.until(t, s.ID, container.Running)
	t.Cleanup(func() {
		after := context.WithoutCancel(ctx(t))
		must(t, b.Remove(after, s.ID))
		must(t, b.Close(after, "u1"))
	})
}

// exec runs a probe in a container, and gives its exit code and output.
func (b *bench) exec(t *testing.T, id string, e builtin.Execution) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	e.Stdout, e.Stderr = &out, &errs
	e.Args = append([]string{"/probe"}, e.Args...)
	code, err := builtin.Exec(ctx(t), b.dir, id, e)
	must(t, err)
	return code, out.String(), errs.String()
}

// TestExecIsConfined: what is run beside a container's program has what that has, and nothing of who runs it.
func TestExecIsConfined(t *testing.T) {
	t.Parallel()
	b := open(t)
	five, six := int64(5), int64(6)
	s := b.spec("a", "show", ",", "wait")
	s.User, s.Group, s.Dir = &five, &six, "/proc"
	s.Groups = []int64{7}
	s.NoNewPrivileges, s.OOMScoreAdj = true, 900
	s.Env = []container.Variable{{Name: "A", Value: "1"}}
	b.began(t, s)
	code, out, errs := b.exec(t, "a", builtin.Execution{Args: []string{"show", ",", "cat", "/proc/self/oom_score_adj", ",", "files", ",",
		"call", "keyctl", ",", "call", "mount", ",", "call", "getppid"}})
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, %s", code, errs)
	}
	text, err := os.ReadFile(s.LogPath)
	must(t, err)
	var lines []string
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.SplitN(strings.TrimSuffix(line, "\n"), " ", 4)[3])
	}
	own, got := facts(lines), facts(strings.Split(out, "\n"))
	for name, want := range map[string]string{
		"hostname": "host-of-p", "uid": "5", "gid": "6", "groups": "6 7", "directory": "/proc", "env.A": "1", "no_new_privileges": "1",
		"capabilities": "0000000000000000",
		"call.keyctl":  "operation-not-permitted", "call.mount": "operation-not-permitted", "call.getppid": "done", "files": "0 1 2",
		"input": "pipe",
	} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for name, want := range own {
		if strings.HasPrefix(name, "namespace.") || strings.HasPrefix(name, "cgroup") || name == "affinity" || name == "seccomp" {
			if got[name] != want {
				t.Errorf("%s is %q, the container's own program has %q", name, got[name], want)
			}
		}
	}
	if !strings.Contains("\n"+out, "\n900\n") {
		t.Errorf("the score for the out-of-memory killer is not the container's: %q", out)
	}
}

// TestExecStreams: input, both outputs, exit codes, and a program that leaves its output open to another one.
func TestExecStreams(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.began(t, b.spec("a", "wait"))
	large := strings.Repeat("0123456789abcdef", 1<<14)
	for _, row := range []struct {
		args           []string
		in             io.Reader
		code           int
		stdout, stderr string
	}{
		{[]string{"print", "to", "out", ",", "complain", "to", "err", ",", "exit", "7"}, nil, 7, "to out\n", "to err\n"},
		{[]string{"cat", "/dev/stdin"}, nil, 0, "", ""},
		{[]string{"cat", "/dev/stdin"}, strings.NewReader(large), 0, large, ""},
		{[]string{"print", "unread"}, strings.NewReader(large), 0, "unread\n", ""},
		{[]string{"die", "9"}, nil, 137, "", ""},
		{[]string{"leave", "stubborn", ",", "print", "gone"}, nil, 0, "gone\n", ""},
	} {
		code, out, errs := b.exec(t, "a", builtin.Execution{Args: row.args, Stdin: row.in})
		if code != row.code || strings.ReplaceAll(out, "stays\n", "") != row.stdout || errs != row.stderr {
			t.Errorf("%q: exit code %d, %d bytes of output %.100q, %q", row.args, code, len(out), out, errs)
		}
	}
	// Unread output does not block the program.
	code, err := builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{
		Args: []string{"/probe", "cat", "/probe", ",", "exit", "3"}, Stdout: refusing{}, Stderr: io.Discard,
	})
	if code != 3 || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
}

type refusing struct{}

func (refusing) Write([]byte) (int, error) { return 0, errors.New("full") }

// TestExecTerminal gives a program a terminal of the container.
func TestExecTerminal(t *testing.T) {
	t.Parallel()
	b := open(t)
	s := b.spec("a", "wait")
	thousand := int64(1000)
	s.User = &thousand
	b.began(t, s)
	code, out, errs := b.exec(t, "a", builtin.Execution{Args: []string{"terminal", ",", "show"}, TTY: true, Width: 97, Height: 31})
	got := facts(strings.Split(strings.ReplaceAll(out, "\r\n", "\n"), "\n"))
	if code != 0 || errs != "" || got["terminal"] != "yes yes yes 97x31" || got["env.TERM"] != "xterm" {
		t.Errorf("exit code %d, %q, terminal %q, TERM %q", code, errs, got["terminal"], got["env.TERM"])
	}
	// The end of the input ends the program's, and a terminal repeats what is typed.
	code, out, _ = b.exec(t, "a", builtin.Execution{Args: []string{"cat", "/dev/stdin", ",", "exit", "5"}, TTY: true,
		Stdin: strings.NewReader("typed\n")})
	if code != 5 || strings.Count(out, "typed\r\n") != 2 {
		t.Errorf("exit code %d, %q", code, out)
	}
	// Ctrl-C is the terminal's to send on. Before the program has the terminal, there is nobody to send it to.
	began := make(chan struct{})
	code, err := builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{Args: []string{"/probe", "show", ",", "cat", "/dev/stdin"}, TTY: true,
		Stdout: &onFirst{do: func() { close(began) }}, Stdin: io.MultiReader(after(began), strings.NewReader("\x03"), waiting{t})})
	if code != 128+int(syscall.SIGINT) || err != nil {
		t.Errorf("exit code %d, %v", code, err)
	}
	sizes := make(chan builtin.Size, 1)
	first := &onFirst{do: func() { sizes <- builtin.Size{Width: 40, Height: 20} }}
	code, err = builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{Args: []string{"/probe", "resized"}, TTY: true, Width: 10, Height: 10,
		Sizes: sizes, Stdout: first})
	if code != 0 || err != nil || !strings.Contains(first.text.String(), "resized=40x20") {
		t.Errorf("exit code %d, %v, %q", code, err, first.text.String())
	}
}

// waiting is an input that does not end before the test does.
type waiting struct{ t *testing.T }

func (w waiting) Read([]byte) (int, error) {
	<-w.t.Context().Done()
	return 0, io.EOF
}

// after is an input without anything, whose end comes with an event.
type after <-chan struct{}

func (a after) Read([]byte) (int, error) {
	<-a
	return 0, io.EOF
}

// onFirst does something at the first output.
type onFirst struct {
	once sync.Once
	do   func()
	text bytes.Buffer
}

func (o *onFirst) Write(p []byte) (int, error) {
	o.once.Do(o.do)
	return o.text.Write(p)
}

// TestExecSignals: signals are handed on, and the end of the caller's context ends the program.
func TestExecSignals(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.began(t, b.spec("a", "wait"))
	signals := make(chan os.Signal, 1)
	out := &onFirst{do: func() { signals <- syscall.SIGTERM }}
	code, err := builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{Args: []string{"/probe", "wait"}, Stdout: out, Stderr: io.Discard,
		Signals: signals})
	if code != 0 || err != nil {
		t.Errorf("SIGTERM: exit code %d, %v", code, err)
	}
	bounded, stop := context.WithCancel(ctx(t))
	defer stop()
	out = &onFirst{do: stop}
	code, err = builtin.Exec(bounded, b.dir, "a", builtin.Execution{Args: []string{"/probe", "stubborn"}, Stdout: out, Stderr: io.Discard})
	if code != 137 || err != nil {
		t.Errorf("the end of the context: exit code %d, %v", code, err)
	}
	// The container's end is the program's, too.
	out = &onFirst{do: func() { must(t, b.Signal(ctx(t), "a", syscall.SIGKILL)) }}
	code, err = builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{Args: []string{"/probe", "stubborn"}, Stdout: out, Stderr: io.Discard})
	if code != 137 || err != nil {
		t.Errorf("the container's end: exit code %d, %v", code, err)
	}
	b.until(t, "a", container.Exited)
	_, err = builtin.Exec(ctx(t), b.dir, "a", builtin.Execution{Args: []string{"/probe", "show"}, Stdout: io.Discard, Stderr: io.Discard})
	if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "ended") {
		t.Errorf("after its end: %v", err)
	}
}

// TestExecRefused: programs that are not there, and containers that do not run.
func TestExecRefused(t *testing.T) {
	t.Parallel()
	b := open(t)
	b.pod(t)
	must(t, b.Create(ctx(t), b.spec("a", "wait")))
	try := func(id string, args ...string) error {
		_, err := builtin.Exec(ctx(t), b.dir, id, builtin.Execution{Args: args, Stdout: io.Discard, Stderr: io.Discard})
		return err
	}
	if err := try("a", "/probe", "show"); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), "not started") {
		t.Errorf("before its start: %v", err)
	}
	must(t, b.Start(ctx(t), "a"))
	for _, row := range []struct {
		id, want string
		args     []string
	}{
		{"a", "/none", []string{"/none"}}, {"a", "none", []string{"none", "x"}}, {"a", "permission denied", []string{"/proc/self/status"}},
		{"b", "no such container", []string{"/probe"}}, {"../containers/a", "no container id", []string{"/probe"}},
		{"..", "no container id", []string{"/probe"}}, {"", "no container id", []string{"/probe"}},
	} {
		if err := try(row.id, row.args...); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s %q: %v, want %q", row.id, row.args, err, row.want)
		}
	}
	// An interrupted write of the files of the container is no running container.
	must(t, os.Rename(filepath.Join(b.dir, "containers", "a", "bundle.json"), filepath.Join(b.dir, "kept")))
	if err := try("a", "/probe", "show"); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("without a bundle: %v", err)
	}
	must(t, os.Rename(filepath.Join(b.dir, "kept"), filepath.Join(b.dir, "containers", "a", "bundle.json")))
	must(t, b.Remove(ctx(t), "a"))
	must(t, b.Close(ctx(t), "u1"))
}
