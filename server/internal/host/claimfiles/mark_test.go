package claimfiles

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
)

// TestMark: a mark is what was set last in this boot, and nothing else is one.
func TestMark(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "last-commit")
	open := func(boot string) *Mark {
		t.Helper()
		m, err := OpenMark(path, boot)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	if _, _, ok := open("boot-1").Found(); ok {
		t.Error("an empty file has a mark")
	}
	m := open("boot-1")
	for _, generation := range []uint64{9, 18446744073709551615, 10} {
		if err := m.Set(0xfedcba9876543210, generation); err != nil {
			t.Fatal(err)
		}
	}
	if epoch, generation, ok := open("boot-1").Found(); !ok || epoch != 0xfedcba9876543210 || generation != 10 {
		t.Errorf("found %x %d %t", epoch, generation, ok)
	}
	if _, _, ok := open("boot-2").Found(); ok {
		t.Error("a mark of another boot counts")
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(whole[:len(whole)-1]), string(whole) + "x", strings.Repeat("9", 300), "x"} {
		if err := os.WriteFile(path, []byte(text), fileMode); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := open("boot-1").Found(); ok {
			t.Errorf("%q counts as a mark", text)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != fileMode {
		t.Errorf("%v, %v", info, err)
	}
}

// TestMarkElsewhere: what is no regular file is refused by name.
func TestMarkElsewhere(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "last-commit")
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMark(path, "b"); errdefs.ClassOf(err) != errdefs.Precondition || !strings.Contains(err.Error(), path) {
		t.Errorf("%v", err)
	}
	if _, err := OpenMark(filepath.Join(dir, "no", "folder"), "b"); errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("%v", err)
	}
}

// TestMarkGoesMeanwhile: a mark whose file or directory is removed or replaced is made again.
func TestMarkGoesMeanwhile(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]func(path string) error{
		"removed":   os.Remove,
		"moved":     func(path string) error { return os.Rename(path, path+"-old") },
		"replaced":  func(path string) error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("x"), 0o600)) },
		"directory": func(path string) error { return os.RemoveAll(filepath.Dir(path)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "claims", "mark")
			if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			m, err := OpenMark(path, "boot")
			if err != nil {
				t.Fatal(err)
			}
			for generation := range uint64(3) {
				if err := m.Set(7, generation); err != nil {
					t.Fatal(err)
				}
				if generation == 0 {
					if err := harm(path); err != nil {
						t.Fatal(err)
					}
				}
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			if m, err = OpenMark(path, "boot"); err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			if epoch, generation, ok := m.Found(); epoch != 7 || generation != 2 || !ok {
				t.Errorf("found %x %d %t", epoch, generation, ok)
			}
		})
	}
}
