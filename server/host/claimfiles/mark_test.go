package claimfiles

import (
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
