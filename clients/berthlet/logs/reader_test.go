package logs_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/clients/berthlet/logs"
)

// TestRead: what a writer wrote comes back, over a file that was replaced, and after the end more can come.
func TestRead(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	path := filepath.Join(root, "pod", "app", "0.log")
	w, err := logs.Open(root, path, 200, func() time.Time { return time.Unix(0, 0) })
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	write := func(text string) {
		t.Helper()
		if err := w.Copy(logs.Stdout, strings.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	r, err := logs.Read(root, path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	expect := func(texts ...string) {
		t.Helper()
		for _, want := range texts {
			e, err := r.Next()
			if err != nil || string(e.Text) != want || e.Stream != logs.Stdout || e.Time != "1970-01-01T00:00:00Z" {
				t.Errorf("%+v, %v; want %q", e, err, want)
			}
		}
		if e, err := r.Next(); !errors.Is(err, io.EOF) {
			t.Errorf("%+v, %v; want the end", e, err)
		}
	}
	expect("one")
	var more []string
	for i := range 3 {
		more = append(more, fmt.Sprint("line ", i))
		write(more[i] + "\n")
	}
	expect(more...)
	write(strings.Repeat("x", 150) + "\n") // begins the file again
	expect(strings.Repeat("x", 150))
}

// TestReadRefuses: a container may have the directory of logs as a volume.
func TestReadRefuses(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{os.Mkdir(filepath.Join(root, "app"), 0o755), os.Symlink(secret, filepath.Join(root, "app", "0.log")),
		os.Symlink(filepath.Dir(secret), filepath.Join(root, "dir"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{filepath.Join(root, "app", "0.log"), filepath.Join(root, "dir", "secret"), secret} {
		if r, err := logs.Read(root, path); err == nil {
			_ = r.Close()
			t.Errorf("%s was opened", path)
		}
	}
}
