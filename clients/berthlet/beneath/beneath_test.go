//go:build linux

package beneath_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/clients/berthlet/beneath"
	"github.com/berthd/berth/managers/errdefs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a root with everything in it that can lead elsewhere, beside what must not
// be reached. It gives the directory of both.
func tree(t *testing.T) (dir string, root *os.File) {
	t.Helper()
	dir = t.TempDir()
	for _, path := range []string{"root/a/b", "outside"} {
		must(t, os.MkdirAll(filepath.Join(dir, path), 0o755))
	}
	for _, path := range []string{"root/file", "root/a/b/file", "outside/file"} {
		must(t, os.WriteFile(filepath.Join(dir, path), []byte(path), 0o644))
	}
	for name, target := range map[string]string{
		"out": "../outside", "absolute": dir + "/outside", "inside": "a", "loop": "loop", "dangling": "none", "a/up": "../../outside",
		"filelink": "file",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, "root", name)))
	}
	must(t, syscall.Mkfifo(filepath.Join(dir, "root/pipe"), 0o644))
	must(t, os.Link(filepath.Join(dir, "outside/file"), filepath.Join(dir, "root/second")))
	root, err := beneath.Root(filepath.Join(dir, "root"))
	must(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return dir, root
}

func TestPaths(t *testing.T) {
	t.Parallel()
	dir, root := tree(t)
	for _, row := range []struct {
		path string
		want errdefs.Class
	}{
		{"a/b", 0}, {"a/b/", 0}, {"./a//b/.", 0}, {"", 0}, {".", 0}, {"file", 0}, {"a/b/file", 0}, {"new/deep", 0}, {"a/new", 0},
		{"pipe", 0},
		{"out", errdefs.PermissionDenied}, {"out/file", errdefs.PermissionDenied}, {"out/new", errdefs.PermissionDenied},
		{"absolute", errdefs.PermissionDenied}, {"inside", errdefs.PermissionDenied}, {"inside/b", errdefs.PermissionDenied},
		{"loop", errdefs.PermissionDenied}, {"dangling", errdefs.PermissionDenied}, {"dangling/new", errdefs.PermissionDenied},
		{"a/up/file", errdefs.PermissionDenied}, {"filelink", errdefs.PermissionDenied},
		{"..", errdefs.Invalid}, {"../outside", errdefs.Invalid}, {"a/../../outside", errdefs.Invalid}, {"/etc", errdefs.Invalid},
	} {
		f, err := beneath.OpenOrMake(root, row.path, 0o777)
		if row.want == 0 {
			want, statErr := os.Lstat(filepath.Join(dir, "root", row.path))
			if err != nil || statErr != nil {
				t.Errorf("%q: %v, %v", row.path, err, statErr)
				continue
			}
			if got, err := f.Stat(); err != nil || !os.SameFile(got, want) {
				t.Errorf("%q: another file: %v", row.path, err)
			}
			must(t, f.Close())
			continue
		}
		if errdefs.ClassOf(err) != row.want || !strings.Contains(err.Error(), strings.SplitN(row.path, "/", 2)[0]) {
			t.Errorf("%q: %v, want class %v", row.path, err, row.want)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "outside")); err != nil || len(entries) != 1 {
		t.Errorf("made outside: %v, %v", entries, err)
	}
	if _, err := beneath.OpenOrMake(root, "file/under", 0o777); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, "root/new/deep")); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("what was made is %v, %v", info.Mode(), err)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	dir, root := tree(t)
	const append = os.O_WRONLY | os.O_CREATE | os.O_APPEND
	for _, row := range []struct {
		name string
		want errdefs.Class
	}{
		{"file", 0}, {"new", 0},
		{"filelink", errdefs.PermissionDenied}, {"dangling", errdefs.PermissionDenied}, {"out", errdefs.PermissionDenied},
		{"pipe", errdefs.PermissionDenied}, {"second", errdefs.PermissionDenied},
		{"a/b/file", errdefs.Invalid}, {"..", errdefs.Invalid}, {"", errdefs.Invalid},
	} {
		f, err := beneath.File(root, row.name, append, 0o640)
		if row.want == 0 {
			must(t, err)
			must(t, f.Close())
		} else if errdefs.ClassOf(err) != row.want {
			t.Errorf("%q: %v, want class %v", row.name, err, row.want)
		}
	}
	// A pipe with a reader would open.
	reader, err := os.OpenFile(filepath.Join(dir, "root/pipe"), os.O_RDWR, 0)
	must(t, err)
	defer reader.Close()
	if _, err := beneath.File(root, "pipe", append, 0o640); errdefs.ClassOf(err) != errdefs.PermissionDenied {
		t.Errorf("a pipe with a reader: %v", err)
	}
	must(t, beneath.Rename(root, "new", "newer"))
	if err := beneath.Rename(root, "newer", "../outside/file"); errdefs.ClassOf(err) != errdefs.Invalid {
		t.Errorf("rename to elsewhere: %v", err)
	}
}

func TestPrivate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"new/deep", "open"} {
		path := filepath.Join(dir, name)
		if name == "open" {
			must(t, os.Mkdir(path, 0o755))
		}
		must(t, beneath.Private(path))
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s is %v, %v", name, info.Mode(), err)
		}
	}
	if err := beneath.Private("/dev/null"); err == nil {
		t.Error("a file")
	}
	if os.Geteuid() != 0 {
		if err := beneath.Private("/"); errdefs.ClassOf(err) != errdefs.Precondition ||
			!strings.Contains(err.Error(), "belongs to user 0") {
			t.Errorf("a directory of somebody else: %v", err)
		}
		return
	}
	theirs := filepath.Join(dir, "theirs")
	must(t, os.Mkdir(theirs, 0o755))
	must(t, os.Chown(theirs, 65534, -1))
	if err := beneath.Private(theirs); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), "belongs to user 65534") {
		t.Errorf("a directory of somebody else: %v", err)
	}
}
