// Package claimfiles stores the claim records of pods in files. It is used if the cgroups are
// simulated or the kernel does not store attributes. The files are in a directory that a boot
// clears.
//
// Words:
//
//   - record: the data of cgroup.Records; this package does not parse it.
//   - page: the part of the file .records with one record. A record that is too large
//     for a page is a separate file, with the name of the pod's cgroup.
//
// Invariants:
//
//   - The directory belongs to berthd's user, with mode 0700.
//   - A record is written by one call or replaced by a rename, so it is complete or absent.
//   - No link is followed.
//   - A separate file has precedence over a page. It exists until the record is removed.
//   - Records are not synced, because pods do not survive the boot either.
//   - If the directory is removed or replaced while it is open, the next call creates it
//     again, with the records in pages. Records in separate files are missing until they
//     are written again.
package claimfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	// largest is more than a record may have; of a larger file no more is read.
	largest = 64 << 10
	// unfinished is the prefix of incomplete files and of files without a record. No pod's cgroup
	// has this prefix.
	unfinished = "."
)

// Files are the records in a directory. They are safe for concurrent use; of writes to
// one record at the same time the last one counts.
type Files struct {
	path, boot string

	mu    sync.Mutex
	dir   *os.Root        // guarded by mu
	pages *pages          // guarded by mu
	large map[string]bool // guarded by mu; the records that are files by themselves
	// renewed counts how often the directory was made again. Guarded by mu.
	renewed int
}

var _ cgroup.Records = (*Files)(nil)

// renewals is how often a write is repeated because its file was removed meanwhile.
const renewals = 3

// bootFile has the id of the records' boot; pageFile has the records in pages.
const (
	bootFile = unfinished + "boot"
	pageFile = unfinished + "records"
)

// Open opens the directory, and creates it if it is missing. Records of another boot are removed:
// their pods have ended, and a power failure may have truncated them. A directory that another
// user owns or can write is an error of class Precondition with the remedy.
func Open(path, boot string) (*Files, error) {
	dir, err := openDir(path)
	if err != nil {
		return nil, err
	}
	f := &Files{path: path, boot: boot, dir: dir, large: map[string]bool{}}
	if err := f.begin(boot); err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return f, nil
}

// openDir opens the directory, and makes it where there is none.
func openDir(path string) (*os.Root, error) {
	if err := os.MkdirAll(path, dirMode); err != nil {
		return nil, errdefs.Unavailablef("make the directory of claim records: %w", err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil, errdefs.Unavailablef("open the directory of claim records: %w", err)
	}
	owner, known := owner(info)
	switch {
	case !info.IsDir():
		return nil, errdefs.Preconditionf("open the directory of claim records: %s is no directory: remove it", path)
	case known && owner != os.Geteuid():
		return nil, errdefs.Preconditionf("open the directory of claim records: %s is owned by uid %d, not by berthd's %d: remove it",
			path, owner, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return nil, errdefs.Preconditionf("open the directory of claim records: %s has mode %#o, others must not reach it: chmod 0700",
			path, info.Mode().Perm())
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, errdefs.Unavailablef("open the directory of claim records: %w", err)
	}
	return dir, nil
}

// Check returns an error if the directory cannot be made again where it was removed or
// replaced; renewed is how often that was done since Open.
func (f *Files) Check() (renewed int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err = f.renew()
	return f.renewed, err
}

// renew makes the directory again if it, or the file with the pages, is not in its place any
// more, and reports whether it did. The caller holds mu.
func (f *Files) renew() (bool, error) {
	open, err := f.pages.file.Stat()
	if err != nil {
		return false, f.failed("read", pageFile, err)
	}
	if here, err := os.Lstat(filepath.Join(f.path, pageFile)); err == nil && os.SameFile(here, open) {
		return false, nil
	}
	dir, err := openDir(f.path)
	if err != nil {
		return false, err
	}
	next := &Files{path: f.path, boot: f.boot, dir: dir, large: map[string]bool{}}
	if err := next.begin(f.boot); err != nil {
		return false, errors.Join(err, dir.Close())
	}
	for name := range f.pages.at {
		record, err := f.pages.read(name)
		if err == nil && !next.large[name] {
			err = next.pages.write(name, record)
		}
		if err != nil {
			return false, errors.Join(f.failed("write", name, err), next.pages.file.Close(), dir.Close())
		}
	}
	_ = errors.Join(f.pages.file.Close(), f.dir.Close())
	f.dir, f.pages, f.large = next.dir, next.pages, next.large
	f.renewed++
	return true, nil
}

// begin removes records of other boots, and files that a crash has left empty.
func (f *Files) begin(boot string) error {
	was, err := f.readFile(bootFile)
	same := err == nil && string(was) == boot
	if !same {
		if err := f.remove(pageFile); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return errdefs.Unavailablef("list the claim records: %w", err)
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || strings.HasPrefix(e.Name(), unfinished) {
			continue
		}
		if info, err := e.Info(); same && (err != nil || info.Size() > 0) {
			f.large[e.Name()] = true
		} else if err := f.remove(e.Name()); err != nil {
			return err
		}
	}
	if err := f.openPages(); err != nil {
		return err
	}
	if same {
		return nil
	}
	if err := f.write(bootFile, []byte(boot)); err != nil {
		return f.failed("write", bootFile, err)
	}
	return nil
}

// openPages opens the file with the pages, and makes it where there is none.
func (f *Files) openPages() error {
	file, err := f.dir.OpenFile(pageFile, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, fileMode)
	if err != nil {
		return f.failed("open", pageFile, err)
	}
	if err := f.own(file, pageFile); err != nil {
		return errors.Join(err, file.Close())
	}
	f.pages, err = openPages(file)
	for name := range f.large {
		if err == nil {
			err = f.pages.remove(name) // a crash came before this
		}
	}
	if err != nil {
		return errors.Join(f.failed("open", pageFile, err), file.Close())
	}
	return nil
}

// Close closes the directory. The records stay.
func (f *Files) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.pages.file.Close(), f.dir.Close())
}

// Names lists the base names of the cgroups that have records, sorted.
func (f *Files) Names() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := slices.AppendSeq(slices.Collect(maps.Keys(f.large)), maps.Keys(f.pages.at))
	slices.Sort(names)
	return names, nil
}

// file gives the name of a record's file. The pods of all classes share the directory:
// a uid is one pod's.
func file(name cgroup.Name) (string, error) {
	if err := name.Check(); err != nil {
		return "", err
	}
	if base := name.Base(); base != "" && !strings.HasPrefix(base, unfinished) {
		return base, nil
	}
	return "", errdefs.Invalidf("cgroup %s is not a pod's", name)
}

// ReadRecord implements cgroup.Records.
func (f *Files) ReadRecord(ctx context.Context, name cgroup.Name) ([]byte, error) {
	base, err := file(name)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.renew(); err != nil {
		return nil, err
	}
	if f.large[base] {
		return f.readFile(base)
	}
	record, err := f.pages.read(base)
	if errdefs.ClassOf(err) == errdefs.Corrupt {
		return nil, fmt.Errorf("read the claim record %s: %w", filepath.Join(f.path, base), err)
	}
	if err != nil {
		return nil, f.failed("read", base, err)
	}
	return record, nil
}

// readFile reads a file; nil if it is empty or not there.
func (f *Files) readFile(base string) ([]byte, error) {
	in, err := f.dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, f.failed("read", base, err)
	}
	defer in.Close()
	if err := f.own(in, base); err != nil {
		return nil, err
	}
	record, err := io.ReadAll(io.LimitReader(in, largest))
	switch {
	case err != nil:
		return nil, f.failed("read", base, err)
	case len(record) == 0:
		return nil, nil // a crash has left it
	}
	return record, nil
}

// own returns an error if a file is not a regular one that only berthd can reach, by one name.
func (f *Files) own(file *os.File, base string) error {
	why, err := foreign(file)
	if err != nil {
		return f.failed("read", base, err)
	}
	if why != "" {
		return errdefs.PermissionDeniedf("read the claim record %s: %s", filepath.Join(f.path, base), why)
	}
	return nil
}

// foreign returns why others than berthd could have written a file, or could read it; empty
// if they could not.
func foreign(file *os.File) (why string, err error) {
	info, err := file.Stat()
	if err != nil {
		return "", err
	}
	owner, known := owner(info)
	switch {
	case !info.Mode().IsRegular():
		return "it is no regular file", nil
	case known && owner != os.Geteuid():
		return fmt.Sprintf("it is owned by uid %d, not by berthd's %d", owner, os.Geteuid()), nil
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Sprintf("it has mode %#o, others must not reach it", info.Mode().Perm()), nil
	case names(info) > 1:
		return fmt.Sprintf("it has %d names (hard links)", names(info)), nil
	}
	return "", nil
}

// WriteRecord implements cgroup.Records. It does not check whether the cgroup exists.
func (f *Files) WriteRecord(ctx context.Context, name cgroup.Name, record []byte) error {
	base, err := file(name)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for range renewals {
		if err := f.put(base, record); err != nil {
			return err
		}
		// If the file was removed or replaced, the write is lost and must be repeated.
		if again, err := f.renew(); !again || err != nil {
			return err
		}
	}
	return errdefs.Unavailablef("write the claim record %s: its directory is removed again and again", filepath.Join(f.path, base))
}

// put writes or removes a record. The caller holds mu.
func (f *Files) put(base string, record []byte) error {
	switch {
	case len(record) == 0:
		return f.removeRecord(base)
	case !f.large[base] && fits(base, record):
		if err := f.pages.write(base, record); err != nil {
			return f.failed("write", base, err)
		}
		return nil
	}
	next := unfinished + base
	if len(next) > maxName {
		next = next[:maxName] // of uids of that length the last differ enough
	}
	if err := f.write(next, record); err != nil {
		_ = f.dir.Remove(next)
		return f.failed("write", base, err)
	}
	if err := f.dir.Rename(next, base); err != nil {
		return f.failed("write", base, err)
	}
	f.large[base] = true
	if err := f.pages.remove(base); err != nil { // the file counts more
		return f.failed("write", base, err)
	}
	return nil
}

// removeRecord removes a record. The caller holds mu.
func (f *Files) removeRecord(base string) error {
	if f.large[base] {
		if err := f.remove(base); err != nil {
			return err
		}
		delete(f.large, base)
	}
	if err := f.pages.remove(base); err != nil {
		return f.failed("remove", base, err)
	}
	return nil
}

// remove removes a file, if it is there.
func (f *Files) remove(base string) error {
	if err := f.dir.Remove(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f.failed("remove", base, err)
	}
	return nil
}

// maxName is how long a file's name may be.
const maxName = 255

// write makes a file of its own: one that is there was left by a crash.
func (f *Files) write(name string, content []byte) error {
	if err := f.dir.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	out, err := f.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, fileMode)
	if err != nil {
		return err
	}
	_, err = out.Write(content)
	return errors.Join(err, out.Close())
}

func (f *Files) failed(doing, base string, err error) error {
	return fmt.Errorf("%s the claim record %s: %w", doing, filepath.Join(f.path, base), errdefs.Unavailablef("%w", err))
}
