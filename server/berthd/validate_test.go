package main

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// validated runs config validate with the flags of a node's daemons.
func (n *node) validated(args ...string) (code int, out string) {
	n.t.Helper()
	var text bytes.Buffer
	code = execute(context.Background(), &text, &text, append([]string{"config", "validate"}, n.command(args...).Args[1:]...))
	return code, text.String()
}

// TestValidateIsTheStartsChecks: what is refused does not start, with the same field, and what is accepted starts.
// Nothing is made by it.
func TestValidateIsTheStartsChecks(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		prepare func(t *testing.T, n *node)
		args    []string
		want    string // empty: it starts
	}{
		"fine": {},
		"a socket is taken": {prepare: func(t *testing.T, n *node) {
			l, err := net.Listen("unix", n.socket())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
		}, want: "another process already serves"},
		"a directory of others": {prepare: func(t *testing.T, n *node) {
			dir := filepath.Join(n.root, "device-plugins")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}, want: "devicePluginDir: "},
		"a reserved CPU that is not there": {args: []string{"--reserved-cpus", "4000"}, want: "4000"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.args = row.args
			if row.prepare != nil {
				row.prepare(t, n)
			}
			before := listing(t, n.root)
			code, out := n.validated()
			if after := listing(t, n.root); after != before {
				t.Errorf("files before:\n%s\nafter:\n%s", before, after)
			}
			if row.want == "" {
				if code != exitDone || !strings.HasSuffix(out, "the configuration is valid\n") {
					t.Fatalf("exit code %d: %s", code, out)
				}
				d := n.start()
				// Its successor can be checked meanwhile.
				if code, out := n.validated(); code != exitDone || !strings.Contains(out,
					"note: berthd runs with this stateDir (process ") {
					t.Errorf("beside berthd: exit code %d: %s", code, out)
				}
				d.stop()
				return
			}
			if code != exitError || !strings.Contains(out, row.want) {
				t.Errorf("exit code %d, %s, want %q", code, out, row.want)
			}
			if d := n.launch(); d.readyOrDead() {
				t.Error("berthd starts")
			} else if !strings.Contains(d.log.String(), row.want) {
				t.Errorf("berthd says %s, want %q", d.log, row.want)
			}
		})
	}
}

// TestValidateTellsEverything: all that would be refused, not only the first of it.
func TestValidateTellsEverything(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	l, err := net.Listen("unix", n.socket())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	code, out := n.validated("--http", "256.0.0.1:9100")
	if code != exitError || !strings.Contains(out, "listen (--listen): ") || !strings.Contains(out, "http (--http): ") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if err := l.(*net.UnixListener).SetDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if c, err := l.Accept(); err == nil {
		_ = c.Close()
		t.Error("the check has connected to the socket, which could start a service")
	}
}

// listing spells the files below a directory.
func listing(t *testing.T, root string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.Walk(root, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			b.WriteString(info.Mode().String() + " " + strings.TrimPrefix(path, root) + "\n")
			if s, ok := info.Sys().(*syscall.Stat_t); ok && !info.IsDir() && s.Size > 0 {
				b.WriteString(info.ModTime().String() + "\n")
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestMissingAddress: the address of a node may come after berthd, which does not keep berthd from starting.
func TestMissingAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.args = append(n.args, "--http", "192.0.2.1:10470") // no machine has it (RFC 5737)
	if code, out := n.validated(); code != exitDone || !strings.Contains(out, "or the machine does not have it") {
		t.Errorf("exit code %d: %s", code, out)
	}
	d := n.start()
	if !strings.Contains(d.log.String(), "or the machine does not have it") {
		t.Errorf("berthd does not say that the address is missing: %s", d.log)
	}
	d.stop()
}

// TestOccupiedAddress: every user can take a port, which neither ends berthd nor keeps it from starting. It serves when the port is free.
func TestOccupiedAddress(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.env = append(n.env, probesOften+"=1")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	n.args = append(n.args, "--http", address)
	if code, out := n.validated(); code != exitDone || !strings.Contains(out, "note: http (--http): another program has the address") {
		t.Errorf("exit code %d: %s", code, out)
	}
	d := n.start()
	if !strings.Contains(d.log.String(), "another program has the address") {
		t.Errorf("berthd does not say that the address is taken: %s", d.log)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	n.eventually("health is served", func() bool {
		answer, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			return false
		}
		return errors.Join(answer.Body.Close()) == nil && answer.StatusCode == http.StatusOK
	})
	d.stop()
}
