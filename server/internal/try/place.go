package try

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	placeName  = "berth-try"
	recordName = "try.json" // also the lock
	maxRecord  = 4096
	maxPlaces  = 9
	// attempts bounds how often a place is taken that others remove at the same time.
	attempts = 100
	// cgroupPrefix begins the names of cgroups. A dash would be a slice of its own for systemd.
	cgroupPrefix = "berthtry"
)

// Record is what is needed to remove a try.
type Record struct {
	// Cgroup is the cgroup of the try, as --cgroup-root has it.
	Cgroup string `json:"cgroup"`
	// Driver and Mount are those of the tree.
	Driver string `json:"driver"`
	Mount  string `json:"mount"`
	// Memory says that cgroups are only in berthd's memory.
	Memory bool `json:"memory,omitempty"`
}

// ReadRecord reads the record of a place that is in use.
func ReadRecord(dir string) (r Record, err error) {
	text, err := trust.ReadFile(filepath.Join(dir, recordName), maxRecord)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		return r, fmt.Errorf("read the record of --try: %w", err)
	}
	return r, nil
}

// place is a directory that this process has locked.
type place struct {
	dir  string
	lock *os.File
}

// parent is where places lie: a directory for what lives until the next boot.
func parent(uid int, getenv func(string) string) string {
	if uid == 0 {
		return "/run"
	}
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return dir
	}
	return os.TempDir()
}

// placesIn lists the paths of places.
func placesIn(dir string) (paths []string) {
	for n := 1; n <= maxPlaces; n++ {
		name := placeName
		if n > 1 {
			name = fmt.Sprintf("%s-%d", placeName, n)
		}
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths
}

// take makes the first place that is free, and removes those that dead tries have left. warn gets what could not be removed.
func take(ctx context.Context, dir string, warn func(error)) (*place, error) {
	// Of a file that is not there, the way is checked: the directory may have the sticky bit.
	if err := trust.CheckExisting(filepath.Join(dir, rand.Text())); err != nil {
		return nil, fmt.Errorf("--try makes its directory in %s: %w", dir, err)
	}
	paths := placesIn(dir)
	for _, path := range paths {
		if err := removeDead(ctx, path); err != nil {
			warn(err)
		}
	}
	for _, path := range paths {
		p, err := create(path)
		if p != nil || err != nil {
			return p, err
		}
	}
	return nil, errdefs.Conflictf("--try: %s to %s are all in use: end one of the running tries", paths[0], paths[len(paths)-1])
}

// create makes a place; nil if the path is taken.
func create(path string) (*place, error) {
	for range attempts {
		err := os.Mkdir(path, 0o700)
		if errors.Is(err, fs.ErrExist) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("--try makes its directory: %w", err)
		}
		lock, err := os.OpenFile(filepath.Join(path, recordName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			continue // another try has removed the empty directory
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if locked(lock) {
			return &place{path, lock}, nil
		}
		_ = lock.Close() // another try removes it
	}
	return nil, errdefs.Unavailablef("--try: %s is made and removed by other tries again and again", path)
}

// locked takes the lock of a record, and reports whether the record is still the one of its path.
func locked(f *os.File) bool {
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(f.Name())
	return err == nil && os.SameFile(mine, there)
}

// removeDead removes what a dead try has left at a path. What may be another's stays, without an error.
func removeDead(ctx context.Context, path string) error {
	if !own(path, fs.ModeDir) || trust.Check(path) != nil {
		return nil
	}
	record := filepath.Join(path, recordName)
	f, err := os.OpenFile(record, os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(path) // only an empty directory: a try was killed when it had just made it
		return nil
	}
	if err != nil {
		return nil
	}
	defer f.Close()
	if !own(record, 0) || !locked(f) {
		return nil
	}
	return (&place{path, f}).remove(ctx)
}

// own reports whether a path itself, not what a link leads to, is a file of that type of this process's user.
func own(path string, kind fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Type() != kind {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(stat.Uid) == os.Geteuid()
}

// newRecord returns a record with a new name for a cgroup below another.
func newRecord(root, driver, mount string) Record {
	name := cgroupPrefix + strings.ToLower(rand.Text())
	return Record{Cgroup: filepath.Join("/", root, name), Driver: driver, Mount: mount}
}

// write keeps a record in the place.
func (p *place) write(r Record) error {
	text, err := json.Marshal(r)
	if err == nil {
		err = p.lock.Truncate(0)
	}
	if err == nil {
		_, err = p.lock.WriteAt(text, 0)
	}
	if err != nil {
		return fmt.Errorf("--try writes %s: %w", p.lock.Name(), err)
	}
	return nil
}

// remove removes the cgroup of the place with all processes in it, and the directory, the record last. If the cgroup stays, so does
// the record, for the next try.
func (p *place) remove(ctx context.Context) error {
	text, err := trust.ReadFile(p.lock.Name(), maxRecord)
	if err != nil {
		return fmt.Errorf("--try removes %s: %w", p.dir, err)
	}
	var r Record
	// The record is empty where a try was killed early.
	if json.Unmarshal(text, &r) == nil {
		if err := removeCgroup(ctx, r); err != nil {
			return fmt.Errorf("--try removes %s, which the next one tries again: %w", p.dir, err)
		}
	}
	entries, err := os.ReadDir(p.dir)
	for _, e := range entries {
		if e.Name() != recordName {
			err = errors.Join(err, os.RemoveAll(filepath.Join(p.dir, e.Name())))
		}
	}
	if err == nil {
		err = os.RemoveAll(p.dir)
	}
	if err != nil {
		return fmt.Errorf("--try removes %s: %w", p.dir, err)
	}
	return nil
}
