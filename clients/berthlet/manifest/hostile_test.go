package manifest_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/manifest"
)

// aliases is YAML of a few hundred bytes that stands for a list of ten to the power of nine.
func aliases() string {
	var b strings.Builder
	b.WriteString("apiVersion: v1\nkind: Pod\nmetadata:\n  name: bomb\n  annotations:\n    a: &a0 [x]\n")
	for i := range 9 {
		fmt.Fprintf(&b, "    b%d: &a%d [%s*a%d]\n", i, i+1, strings.Repeat(fmt.Sprintf("*a%d, ", i), 9), i)
	}
	return b.String()
}

// TestHostileFiles: a file that is none, that is too large, or that stands for more than it
// has, is refused, and the pods of the other files are there.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var log strings.Builder
	f := manifest.Open(dir, slog.New(slog.NewTextHandler(&log, nil)))
	pipe := filepath.Join(t.TempDir(), "pipe")
	for _, p := range []string{pipe, filepath.Join(dir, "b-pipe.yaml")} {
		if err := syscall.Mkfifo(p, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{
		"c-zero.yaml": "/dev/zero", "d-tty.yaml": "/dev/ptmx", "e-pipe.yaml": pipe, "f-folder.yaml": "/", "g-itself.yaml": "g-itself.yaml",
	} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir, "h-large.yaml", "")
	if err := os.Truncate(filepath.Join(dir, "h-large.yaml"), 1<<40); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "i-aliases.yaml", aliases())
	write(t, dir, "j-deep.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {annotations: "+strings.Repeat("[", 1<<20)+"}\n")
	write(t, dir, "k-deep.json", `{"apiVersion":"v1","kind":"Pod","metadata":`+strings.Repeat(`{"a":`, 1<<20))
	write(t, dir, "l-path.yaml", strings.ReplaceAll(pod("l"), "{name: l}", "{name: l, uid: ../../etc}"))
	write(t, dir, "m-path.yaml", pod("../m"))
	write(t, dir, "n-twice.yaml", strings.ReplaceAll(pod("n"), "{name: n}", "{name: n, name: other}"))
	write(t, dir, "o-container.yaml", strings.ReplaceAll(pod("o"), "{name: c}", "{name: ../c}"))
	write(t, dir, "p-twice.json",
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{"containers":[{"name":"c","image":"i"}],"hostPID":false,"hostPID":true}}`)
	write(t, dir, "a.yaml", pod("a"))
	write(t, dir, "z.yaml", pod("z"))
	read(t, f, "a", "z")
	for _, name := range []string{
		"b-pipe", "c-zero", "d-tty", "e-pipe", "f-folder", "g-itself", "h-large", "i-aliases", "j-deep", "k-deep", "l-path", "m-path",
		"n-twice", "o-container", "p-twice",
	} {
		if !strings.Contains(log.String(), name) {
			t.Errorf("nothing is said about %s", name)
		}
	}
}

// TestFileBecomesAPipe: a file that turns into a named pipe between two readings does not
// stop the reader.
func TestFileBecomesAPipe(t *testing.T) {
	t.Parallel()
	dir, spare := t.TempDir(), t.TempDir()
	path, pipe, file := filepath.Join(dir, "a.yaml"), filepath.Join(spare, "pipe"), filepath.Join(spare, "file")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, spare, "file", pod("a"))
	f := manifest.Open(dir, slog.New(slog.DiscardHandler))
	var over atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !over.Load() {
			for _, from := range []string{file, pipe} {
				next := from + ".next"
				if os.Link(from, next) == nil {
					_ = os.Rename(next, path)
				}
			}
		}
	}()
	reads := make(chan struct{})
	go func() {
		defer close(reads)
		for range 20000 {
			_, _, _ = f.Read()
		}
	}()
	select {
	case <-reads:
	case <-time.After(time.Minute):
		t.Error("the reader waits for a pipe's writer")
		if w, err := os.OpenFile(pipe, os.O_RDWR, 0); err == nil { // so that it continues
			defer w.Close()
		}
	}
	over.Store(true)
	<-done
}
