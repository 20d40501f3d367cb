//go:build linux

package trust_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheck walks ways with everything on them that can be.
func TestCheck(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name string
		// modes of directories, links with "->", and what is checked.
		tree map[string]fs.FileMode
		link map[string]string
		path string
		want string
	}{
		{"good", map[string]fs.FileMode{"a": 0o755, "a/b": 0o700}, nil, "a/b", ""},
		{"sticky above", map[string]fs.FileMode{"a": 0o777 | fs.ModeSticky, "a/b": 0o755}, nil, "a/b", ""},
		{"sticky itself", map[string]fs.FileMode{"a": 0o777 | fs.ModeSticky}, nil, "a", "a (owner"},
		{"open above", map[string]fs.FileMode{"a": 0o777, "a/b": 0o755}, nil, "a/b", "a (owner"},
		{"open itself", map[string]fs.FileMode{"a": 0o755, "a/b": 0o757}, nil, "a/b", "a/b (owner"},
		{"own group", map[string]fs.FileMode{"a": 0o775}, nil, "a", ""},
		{"link", map[string]fs.FileMode{"a": 0o755, "a/b": 0o755}, map[string]string{"l": "a"}, "l/b", ""},
		{"link to what is open", map[string]fs.FileMode{"a": 0o777, "a/b": 0o755}, map[string]string{"l": "a/b"}, "l", "a (owner"},
		{"link back", map[string]fs.FileMode{"a": 0o755, "b": 0o755}, map[string]string{"a/l": "../b"}, "a/l", ""},
		{"link back over what is open", map[string]fs.FileMode{"o": 0o777, "o/a": 0o755, "b": 0o755},
			map[string]string{"l": "o/a/../../b"}, "l", "o (owner"},
		{"absolute link", map[string]fs.FileMode{"a": 0o777}, map[string]string{"l": "/TOP/a"}, "l", "a (owner"},
		{"above a link", map[string]fs.FileMode{"o": 0o777, "o/a": 0o755}, map[string]string{"l": "o/a"}, "l/..", "o (owner"},
		{"beside a link", map[string]fs.FileMode{"a": 0o755, "b": 0o757}, map[string]string{"l": "a"}, "l/../b", "b (owner"},
		{"endless link", nil, map[string]string{"l": "l"}, "l", "links on the path"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			for _, dir := range []string{"a", "b", "o", "a/b", "o/a"} {
				if mode, ok := row.tree[dir]; ok {
					must(t, os.Mkdir(filepath.Join(top, dir), 0o700))
					must(t, os.Chown(filepath.Join(top, dir), -1, os.Getegid()))
					must(t, os.Chmod(filepath.Join(top, dir), mode))
				}
			}
			for name, target := range row.link {
				must(t, os.Symlink(strings.ReplaceAll(target, "/TOP", top), filepath.Join(top, name)))
			}
			err := trust.Check(top + "/" + row.path)
			if row.want == "" && err != nil || row.want != "" && (errdefs.ClassOf(err) != errdefs.Precondition ||
				!strings.Contains(err.Error(), row.want)) {
				t.Errorf("%v, want %q", err, row.want)
			}
			if row.want != "" && row.name != "endless link" && !strings.Contains(err.Error(), "mode 0") {
				t.Errorf("%v names no mode", err)
			}
		})
	}
}

func TestMkdirAll(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, trust.MkdirAll(filepath.Join(dir, "a/b"), 0o750))
	if info, err := os.Stat(filepath.Join(dir, "a/b")); err != nil || info.Mode().Perm() != 0o750 {
		t.Errorf("%v, %v", info, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	if err := trust.MkdirAll(filepath.Join(dir, "file"), 0o750); err == nil {
		t.Error("a file")
	}
	if err := trust.Check(filepath.Join(dir, "none")); err == nil {
		t.Error("what is not there")
	}
	must(t, trust.CheckExisting(filepath.Join(dir, "none/deeper")))
	open := filepath.Join(dir, "open")
	must(t, os.Mkdir(open, 0o700))
	must(t, os.Chmod(open, 0o777))
	if err := trust.CheckExisting(filepath.Join(open, "none")); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("below what is open: %v", err)
	}
	if os.Geteuid() != 0 {
		return // files of others are in server/internal/exploittest, which needs root
	}
	theirs := filepath.Join(dir, "theirs")
	must(t, os.Mkdir(theirs, 0o700))
	must(t, os.Chown(theirs, 65534, 65534))
	if err := trust.MkdirAll(filepath.Join(theirs, "x"), 0o750); errdefs.ClassOf(err) != errdefs.Precondition ||
		!strings.Contains(err.Error(), theirs+" belongs to user 65534 (mode 0700)") {
		t.Errorf("%v", err)
	}
}
