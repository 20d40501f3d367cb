package claimfiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// planted are ways in which another program could have put a file into the directory, or keep
// hold of one there.
var planted = map[string]func(path string, content []byte) error{
	"of another owner": func(path string, content []byte) error {
		return errors.Join(os.WriteFile(path, content, 0o600), os.Chown(path, 64100, 64100))
	},
	"writable for others": func(path string, content []byte) error {
		return errors.Join(os.WriteFile(path, content, 0o600), os.Chmod(path, 0o622))
	},
	"readable for a group": func(path string, content []byte) error {
		return errors.Join(os.WriteFile(path, content, 0o600), os.Chmod(path, 0o640))
	},
	"a hard link": func(path string, content []byte) error {
		other := filepath.Join(filepath.Dir(filepath.Dir(path)), "kept")
		return errors.Join(os.WriteFile(other, content, 0o600), os.Link(other, path))
	},
	"a link": func(path string, content []byte) error {
		other := filepath.Join(filepath.Dir(filepath.Dir(path)), "kept")
		return errors.Join(os.WriteFile(other, content, 0o600), os.Symlink(other, path))
	},
	"a pipe":      func(path string, _ []byte) error { return syscall.Mkfifo(path, 0o600) },
	"a directory": func(path string, _ []byte) error { return os.Mkdir(path, 0o700) },
}

// plant makes a directory of claim records with one record in a file of its own, and then
// replaces a file of the directory.
func plant(t *testing.T, name, way string) (path string, err error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("needs root, which can give files away: the effective user is %d", os.Geteuid())
	}
	path = filepath.Join(t.TempDir(), "claims")
	f, err := Open(path, "boot")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.WriteRecord(t.Context(), pod, make([]byte, pageSize)), f.Close()); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(path, name))
	if err != nil {
		t.Fatal(err)
	}
	return path, errors.Join(os.Remove(filepath.Join(path, name)), planted[way](filepath.Join(path, name), content))
}

// TestPlantedRecords: a record that another program could have written is ignored, and
// the pod's next record takes its place.
func TestPlantedRecords(t *testing.T) {
	t.Parallel()
	for way := range planted {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			path, err := plant(t, pod.Base(), way)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Open(path, "boot")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if got, err := f.ReadRecord(t.Context(), pod); got != nil || err != nil && errdefs.ClassOf(err) != errdefs.PermissionDenied {
				t.Errorf("read %d bytes, %v", len(got), err)
			}
			if err := f.WriteRecord(t.Context(), pod, []byte("mine")); err != nil {
				t.Fatal(err)
			}
			if got, err := f.ReadRecord(t.Context(), pod); string(got) != "mine" || err != nil {
				t.Errorf("read %q, %v", got, err)
			}
		})
	}
}

// TestPlantedPages: the file of all records is berthd's, or berthd does not start. The
// message names the file and what is wrong with it.
func TestPlantedPages(t *testing.T) {
	t.Parallel()
	for way := range planted {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			path, err := plant(t, pageFile, way)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Open(path, "boot")
			if err == nil {
				_ = f.Close()
				t.Fatal("it is opened")
			}
			if !strings.Contains(err.Error(), filepath.Join(path, pageFile)) {
				t.Errorf("message %q", err)
			}
		})
	}
}

// TestPlantedBoot: a writer of the boot's id could make old records valid.
func TestPlantedBoot(t *testing.T) {
	t.Parallel()
	for way := range planted {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			path, err := plant(t, bootFile, way)
			if err != nil {
				t.Fatal(err)
			}
			f, err := Open(path, "boot")
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if names, err := f.Names(); len(names) > 0 || err != nil {
				t.Errorf("records %v, %v", names, err)
			}
			if info, err := os.Lstat(filepath.Join(path, bootFile)); err != nil || !info.Mode().IsRegular() ||
				info.Mode().Perm() != fileMode {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// TestPlantedMark: a mark that another program could have written is refused by name.
func TestPlantedMark(t *testing.T) {
	t.Parallel()
	for way, put := range planted {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			if os.Geteuid() != 0 {
				t.Skipf("needs root, which can give files away: the effective user is %d", os.Geteuid())
			}
			dir := filepath.Join(t.TempDir(), "claims")
			path := filepath.Join(dir, "last-commit")
			content := (&Mark{boot: "boot"}).text(7, 9)
			if err := errors.Join(os.Mkdir(dir, 0o700), put(path, []byte(content))); err != nil {
				t.Fatal(err)
			}
			m, err := OpenMark(path, "boot")
			if err == nil {
				_ = m.Close()
			}
			if errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), path) {
				t.Errorf("%v", err)
			}
		})
	}
}
