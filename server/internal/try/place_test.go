package try

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
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
		t.Cleanup(p.close)
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
			p, err := take(t.Context(), base{dir: dir}, func(err error) { warnings = append(warnings, err.Error()) })
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
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

// TestAllPlaces: the tenth try at a time is refused, with those who have the names.
func TestAllPlaces(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		running int
		want    string
	}{
		"tries run": {maxPlaces, "DIR/berth-try-9 are in use: end a running try; TMPDIR can name another directory of yours"},
		"one runs":  {1, fmt.Sprintf("DIR/berth-try are in use: end a running try; DIR/berth-try-2 (of user %d), ", os.Geteuid())},
		"none runs": {0, fmt.Sprintf("no name is free: DIR/berth-try (of user %d), ", os.Geteuid())},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for range row.running {
				p, err := take(t.Context(), base{dir: dir}, func(err error) { t.Error(err) })
				if err != nil {
					t.Fatal(err)
				}
				defer p.close()
			}
			for _, path := range placesIn(dir)[row.running:] {
				write(t, path, "state", "x")
			}
			p, err := take(t.Context(), base{dir, "TMPDIR"}, func(err error) { t.Error(err) })
			if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), dir, "DIR"), row.want) {
				t.Errorf("%v: %v, want %s", p, err, row.want)
			}
		})
	}
}

// TestNoBase: the error names the variable that says where the directory is.
func TestNoBase(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "none")
	p, err := take(t.Context(), base{dir, "XDG_RUNTIME_DIR"}, func(err error) { t.Error(err) })
	if err == nil || !strings.Contains(err.Error(), "no such file or directory; XDG_RUNTIME_DIR can name") {
		t.Error(p, err)
	}
}

// TestEndsTogether: tries that begin and end at the same time have no errors, and leave nothing.
func TestEndsTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var all sync.WaitGroup
	for range maxPlaces - 1 {
		all.Go(func() {
			for range 150 {
				p, err := take(t.Context(), base{dir: dir}, func(err error) { t.Error(err) })
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(p.dir, "state"), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := p.remove(t.Context()); err != nil {
					t.Error(err)
				}
				p.close()
			}
		})
	}
	all.Wait()
	if left := listed(t, dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestRemovedByOthers: a try ends well where others have removed its directory, and leaves what others have at the path now.
func TestRemovedByOthers(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(t *testing.T, path string){
		"nothing": func(*testing.T, string) {},
		"another try": func(t *testing.T, path string) {
			next, err := create(path)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(next.close)
			write(t, path, "state", "x")
		},
		"what berthd makes again": func(t *testing.T, path string) {
			mkdir(t, path, 0o700)
			mkdir(t, filepath.Join(path, "state"), 0o700)
		},
		"a file": func(t *testing.T, path string) { write(t, filepath.Dir(path), filepath.Base(path), "x") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p, err := create(filepath.Join(dir, placeName))
			if err != nil {
				t.Fatal(err)
			}
			defer p.close()
			if err := os.RemoveAll(p.dir); err != nil {
				t.Fatal(err)
			}
			then(t, p.dir)
			before := listed(t, dir)
			if name == "what berthd makes again" {
				before = nil
			}
			if err := p.remove(t.Context()); err != nil {
				t.Error(err)
			}
			if after := listed(t, dir); !slices.Equal(after, before) {
				t.Errorf("%q is left of %q", after, before)
			}
		})
	}
}

// TestRemovesCgroup: the cgroup ends with the try, also where the record in the directory is gone, and where the making has failed in
// the middle.
func TestRemovesCgroup(t *testing.T) {
	t.Parallel()
	for _, memory := range []bool{false, true} {
		p, err := create(filepath.Join(t.TempDir(), placeName))
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		r := newRecord("/", "cgroupfs", "")
		if err := makeCgroup(t.Context(), r); err != nil {
			t.Skipf("no cgroup can be made: %v", err)
		}
		r.Memory = memory
		if err := errors.Join(p.write(r), os.RemoveAll(p.dir), p.remove(t.Context())); err != nil {
			t.Error(err)
		}
		if dirs := cgroupDirs(t, r.Cgroup); len(dirs) > 0 {
			t.Errorf("memory %t: left: %q", memory, dirs)
		}
	}
}

// TestWholeCgroupRoot: a cgroup that is only in one hierarchy is not made in the others, where it would stay.
func TestWholeCgroupRoot(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if err != nil || len(all) == 0 {
		t.Skip("needs cgroup v1", err)
	}
	root := newRecord("/", "", "").Cgroup
	for _, file := range all {
		controller := filepath.Base(filepath.Dir(file))
		dir := filepath.Join(filepath.Dir(file), root)
		if controller == "devices" {
			continue // a runtime's
		}
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Skipf("cgroups are not writable: %v", err)
		}
		r := newRecord(root, "cgroupfs", "")
		if err := makeCgroup(t.Context(), r); err == nil || !strings.Contains(err.Error(), root+": make it, or leave out --cgroup") {
			t.Errorf("%s: %v", controller, err)
		}
		if dirs := cgroupDirs(t, root); !slices.Equal(dirs, []string{dir}) {
			t.Errorf("%s: then there is %q", controller, dirs)
		}
		if err := removeCgroup(t.Context(), Record{Cgroup: root, Driver: "cgroupfs"}); err != nil {
			t.Error(err)
		}
	}
}

// cgroupDirs lists the directories of a cgroup.
func cgroupDirs(t *testing.T, name string) (dirs []string) {
	t.Helper()
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		found, err := filepath.Glob(pattern + name)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, found...)
	}
	return dirs
}

// TestUntrustedParent: a directory in which others could rename the place is refused.
func TestUntrustedParent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	p, err := take(t.Context(), base{dir: dir}, func(err error) { t.Error(err) })
	if err == nil || !strings.Contains(err.Error(), "by everybody") {
		t.Error(p, err)
	}
}

// TestBase: places of a user lie where other users cannot be before them.
func TestBase(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		uid           int
		runtime, want string
	}{
		{0, "/run/user/0", "/run"}, {7, "/run/user/7", "/run/user/7"}, {7, "", os.TempDir()}, {7, "relative", os.TempDir()},
	} {
		if got := baseOf(row.uid, func(string) string { return row.runtime }); got.dir != row.want {
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
