package kubeletnode

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDir: with the directories of the last name kept open, every name is what it is without that, whatever was opened before. A directory
// that was replaced is another one in the next reading.
func TestDir(t *testing.T) {
	t.Parallel()
	dir, outside := t.TempDir(), t.TempDir()
	write := func(at, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"top", "a/one", "a/two", "a/b/one", "a/b/c/one", "d/one"} {
		write(filepath.Join(dir, name), name)
	}
	write(filepath.Join(outside, "secret"), "secret")
	for from, to := range map[string]string{
		"a/link": "b/one", "link": "a", "a/b/up": "../../d/one",
		"out": outside, "a/out": filepath.Join(outside, "secret"), "a/loop": "loop",
	} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "a/pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := OpenDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names := []string{
		"top", "a/one", "a/two", "a/b/one", "a/b/c/one", "d/one", "a/link", "link/one", "link/b/c/one", "a/b/up", "out/secret", "a/out",
		"a/loop", "a/pipe", "a", "a/b", "none", "a/none", "none/one", "a/one/below", "../x", "/top", "",
	}
	read := func(root regular, name string) string {
		data, err := fs.ReadFile(root, name)
		if err != nil {
			err = reason(err)
		}
		return fmt.Sprintf("%s, %v", data, err)
	}
	kept := regularIn(d)
	defer kept.close()
	for _, before := range names {
		for _, name := range names {
			read(kept, before)
			if got, want := read(kept, name), read(regular{d, nil}, name); got != want {
				t.Errorf("%q after %q: %s, want %s", name, before, got, want)
			}
		}
	}
	if got := read(kept, "a/b/c/one"); got != "a/b/c/one, <nil>" {
		t.Errorf("before the directory is replaced: %s", got)
	}
	if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "old")); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "a/b/c/one"), "other")
	kept.close()
	if got := read(kept, "a/b/c/one"); got != "other, <nil>" {
		t.Errorf("in the next reading: %s", got)
	}
}
