package try

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTake: a try takes the first free place, removes what dead tries have left, and touches nothing else.
func TestTake(t *testing.T) {
	t.Parallel()
	inUse := func(t *testing.T, path string) {
		p, err := create(path)
		if p == nil || err != nil {
			t.Fatal(p, err)
		}
		t.Cleanup(func() { _ = p.lock.Close() })
	}
	dead := func(record string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			write(t, path, recordName, record)
			write(t, path, "state", "x")
		}
	}
	for name, row := range map[string]struct {
		made func(t *testing.T, path string) // what is at the path of the first place
		free bool                            // it is the one that is taken
		warn string
	}{
		"nothing":                     {made: func(*testing.T, string) {}, free: true},
		"a running try":               {made: inUse},
		"a dead try":                  {made: dead(`{"cgroup":"/berthtryx","memory":true}`), free: true},
		"a try that was killed early": {made: dead(""), free: true},
		"a try that was killed when it had made its directory": {
			made: func(t *testing.T, path string) { mkdir(t, path, 0o700) }, free: true,
		},
		"a record of another's cgroup": {made: dead(`{"cgroup":"/system.slice","mount":"/does/not/exist"}`), free: true},
		"a cgroup that cannot be removed": {
			made: dead(`{"cgroup":"/berthtryx","driver":"cgroupfs","mount":"/does/not/exist"}`), warn: "which the next one tries again",
		},
		"a directory of something else": {made: func(t *testing.T, path string) { write(t, path, "state", "x") }},
		"a file":                        {made: func(t *testing.T, path string) { write(t, filepath.Dir(path), filepath.Base(path), "x") }},
		"a link to a dead try": {made: func(t *testing.T, path string) {
			target := filepath.Join(filepath.Dir(path), "target")
			dead("")(t, target)
			symlink(t, target, path)
		}},
		"a record that is a link": {made: func(t *testing.T, path string) {
			write(t, filepath.Dir(path), "record", "")
			mkdir(t, path, 0o700)
			symlink(t, filepath.Join(filepath.Dir(path), "record"), filepath.Join(path, recordName))
		}},
		"a directory that everybody can write to": {made: func(t *testing.T, path string) {
			dead("")(t, path)
			if err := os.Chmod(path, 0o777); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			paths := placesIn(dir)
			row.made(t, paths[0])
			before := listed(t, dir)
			var warnings []string
			p, err := take(t.Context(), dir, func(err error) { warnings = append(warnings, err.Error()) })
			if err != nil {
				t.Fatal(err)
			}
			defer p.lock.Close()
			want := paths[1]
			if row.free {
				want = paths[0]
			}
			if p.dir != want {
				t.Errorf("it took %s, want %s", p.dir, want)
			}
			if got := strings.Join(warnings, "\n"); row.warn == "" && got != "" || !strings.Contains(got, row.warn) {
				t.Errorf("it warned %q, want %q", got, row.warn)
			}
			if err := p.remove(t.Context()); err != nil {
				t.Fatal(err)
			}
			after := listed(t, dir)
			if row.free {
				before = nil
			}
			if strings.Join(after, " ") != strings.Join(before, " ") {
				t.Errorf("then there is %q, want %q", after, before)
			}
		})
	}
}

// TestAllPlaces: the tenth try at a time is refused.
func TestAllPlaces(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range maxPlaces {
		p, err := take(t.Context(), dir, func(err error) { t.Error(err) })
		if err != nil {
			t.Fatal(err)
		}
		defer p.lock.Close()
	}
	if p, err := take(t.Context(), dir, func(err error) { t.Error(err) }); err == nil || !strings.Contains(err.Error(), "all in use") {
		t.Error(p, err)
	}
}

// TestUntrustedParent: a directory in which others could rename the place is refused.
func TestUntrustedParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if p, err := take(t.Context(), dir, func(err error) { t.Error(err) }); err == nil || !strings.Contains(err.Error(), "by everybody") {
		t.Error(p, err)
	}
}

// TestParent: places of a user lie where other users cannot be before them.
func TestParent(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		uid           int
		runtime, want string
	}{
		{0, "/run/user/0", "/run"}, {7, "/run/user/7", "/run/user/7"}, {7, "", os.TempDir()}, {7, "relative", os.TempDir()},
	} {
		if got := parent(row.uid, func(string) string { return row.runtime }); got != row.want {
			t.Errorf("%+v: %s", row, got)
		}
	}
}

func mkdir(t *testing.T, path string, mode fs.FileMode) {
	t.Helper()
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	mkdir(t, dir, 0o700)
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// listed lists what is below a directory.
func listed(t *testing.T, dir string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}
