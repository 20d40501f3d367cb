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

// Record holds what is needed to remove a try.
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
	dir string
	// root is the directory itself, whatever is at its path by now.
	root *os.Root
	lock *os.File
	// record is what is in the file, which others may remove.
	record Record
}

// base is where places lie.
type base struct {
	dir string
	// variable of the environment says so; empty if none does.
	variable string
}

// baseOf returns a directory for what lives until the next boot.
func baseOf(uid int, getenv func(string) string) base {
	if uid == 0 {
		return base{dir: "/run"}
	}
	if dir := getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		return base{dir, "XDG_RUNTIME_DIR"}
	}
	return base{os.TempDir(), "TMPDIR"}
}

// refusal is the error of a base in which there is no place.
func (b base) refusal(err error) error {
	if b.variable == "" {
		return fmt.Errorf("--try makes its directory in %s: %w", b.dir, err)
	}
	return fmt.Errorf("--try makes its directory in %s: %w; %s can name another directory of yours", b.dir, err, b.variable)
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
func take(ctx context.Context, b base, warn func(error)) (*place, error) {
	// Of a file that is not there, the way is checked: the directory may have the sticky bit.
	if err := trust.CheckExisting(filepath.Join(b.dir, rand.Text())); err != nil {
		return nil, b.refusal(err)
	}
	paths := placesIn(b.dir)
	for _, path := range paths {
		if err := removeDead(ctx, path); err != nil {
			warn(err)
		}
	}
	for range attempts {
		for _, path := range paths {
			p, err := create(path)
			if err != nil {
				return nil, b.refusal(err)
			}
			if p != nil {
				return p, nil
			}
		}
		if err := noneIsFree(paths); err != nil {
			return nil, b.refusal(err)
		}
	}
	return nil, b.refusal(errdefs.Unavailablef("other tries begin and end again and again"))
}

// noneIsFree is an error that says who has the places; nil if one is free.
func noneIsFree(paths []string) error {
	var running, others []string
	for _, path := range paths {
		info, err := os.Lstat(path)
		switch {
		case err != nil:
			return nil
		case inUse(path, info):
			running = append(running, path)
		default:
			others = append(others, fmt.Sprintf("%s (of user %d)", path, owner(info)))
		}
	}
	var todo []string
	if len(running) > 0 {
		todo = append(todo, fmt.Sprintf("%s are in use: end a running try", strings.Join(running, ", ")))
	}
	if len(others) > 0 {
		todo = append(todo, fmt.Sprintf("%s are not running tries: remove one", strings.Join(others, ", ")))
	}
	return errdefs.Conflictf("no name is free: %s", strings.Join(todo, "; "))
}

// inUse reports whether a try of this user has locked the place at a path.
func inUse(path string, info fs.FileInfo) bool {
	if !own(info, fs.ModeDir) {
		return false
	}
	p, err := open(path, 0)
	if p != nil {
		p.close()
	}
	return p == nil && err == nil
}

// create makes a place; nil if the path is taken.
func create(path string) (*place, error) {
	for range attempts {
		err := os.Mkdir(path, 0o700)
		if errors.Is(err, fs.ErrExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		p, err := open(path, os.O_CREATE|os.O_EXCL)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) {
			continue // another try has removed the empty directory
		}
		if err != nil {
			return nil, errors.Join(err, os.Remove(path))
		}
		if p != nil {
			return p, nil
		}
		// another try removes it
	}
	return nil, errdefs.Unavailablef("%s is made and removed by other tries again and again", path)
}

// open opens the place at a path and locks it; nil if it is another's.
func open(path string, flags int) (*place, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	lock, err := root.OpenFile(recordName, os.O_RDWR|syscall.O_NONBLOCK|flags, 0o600)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	p := &place{dir: path, root: root, lock: lock}
	if p.locked() {
		return p, nil
	}
	p.close()
	return nil, nil
}

// close gives the lock back.
func (p *place) close() { _, _ = p.lock.Close(), p.root.Close() }

// locked takes the lock of the record, and reports whether the record is still the one in the directory.
func (p *place) locked() bool {
	if syscall.Flock(int(p.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return false
	}
	return p.recorded()
}

// recorded reports whether the locked record is still the one in the directory.
func (p *place) recorded() bool {
	mine, err := p.lock.Stat()
	if err != nil {
		return false
	}
	there, err := p.root.Lstat(recordName)
	return err == nil && os.SameFile(mine, there)
}

// removeDead removes what a dead try has left at a path. What may be another's stays, without an error.
func removeDead(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if err != nil || !own(info, fs.ModeDir) || trust.Check(path) != nil {
		return nil
	}
	p, err := open(path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		_ = os.Remove(path) // only an empty directory: a try was killed when it had just made it
		return nil
	}
	if p == nil || err != nil {
		return nil
	}
	defer p.close()
	if info, err := p.root.Lstat(recordName); err != nil || !own(info, 0) {
		return nil
	}
	text, err := trust.ReadFile(p.lock.Name(), maxRecord)
	if err != nil {
		return fmt.Errorf("--try removes %s: %w", path, err)
	}
	var r Record
	// The record is empty where a try was killed early.
	if json.Unmarshal(text, &r) == nil {
		p.record = r
	}
	return p.remove(ctx)
}

// own reports whether something itself, not what a link leads to, is a file of that type of this process's user.
func own(info fs.FileInfo, kind fs.FileMode) bool {
	return info.Mode().Type() == kind && owner(info) == os.Geteuid()
}

// owner is the user that a file belongs to; -1 where that is unknown.
func owner(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// newRecord returns a record with a new name for a cgroup below another.
func newRecord(root, driver, mount string) Record {
	name := cgroupPrefix + strings.ToLower(rand.Text())
	return Record{Cgroup: filepath.Join("/", root, name), Driver: driver, Mount: mount}
}

// write keeps a record in the place.
func (p *place) write(r Record) error {
	p.record = r
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

// remove removes the cgroup of the place with all processes in it, and the directory. If the cgroup or a part of the content stays, so
// does the record, for the next try. Where others have removed the directory, what is at its path now stays.
func (p *place) remove(ctx context.Context) error {
	err := removeCgroup(ctx, p.record)
	if err == nil {
		err = p.removeContent()
	}
	if err != nil {
		return fmt.Errorf("--try removes %s, which the next one tries again: %w", p.dir, err)
	}
	if err := p.removeDirectory(); err != nil {
		return fmt.Errorf("--try removes %s: %w", p.dir, err)
	}
	return nil
}

// removeContent removes all but the record.
func (p *place) removeContent() error {
	if err := checkMounts(p.root); err != nil {
		return err
	}
	entries, err := fs.ReadDir(p.root.FS(), ".")
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the directory itself is gone
	}
	for _, e := range entries {
		if e.Name() != recordName {
			err = errors.Join(err, p.root.RemoveAll(e.Name()))
		}
	}
	return err
}

// removeRemade removes the directories that berthd has made again at the path after others had removed them. They are empty since berthd's
// end. Those of another try, which has a record, stay.
func (p *place) removeRemade() {
	info, err := os.Lstat(p.dir)
	if err != nil || !own(info, fs.ModeDir) {
		return
	}
	if _, err := os.Lstat(filepath.Join(p.dir, recordName)); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	entries, _ := os.ReadDir(p.dir)
	for _, e := range entries {
		_ = syscall.Rmdir(filepath.Join(p.dir, e.Name()))
	}
}

// removeDirectory removes the record and then the directory. Without the record there is no lock: another try may remove the directory
// first, have it for its own, or make another one. So only an empty one is removed; a try that has just made it makes it again.
func (p *place) removeDirectory() error {
	if !p.recorded() {
		p.removeRemade()
	}
	if err := p.root.Remove(recordName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := syscall.Rmdir(p.dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrExist) || errors.Is(err, syscall.ENOTDIR) {
		return nil // ErrExist: it is not empty
	}
	return err
}
