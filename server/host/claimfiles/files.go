// Package claimfiles keeps the claim records of pods as files, where the cgroups are
// not the kernel's or it keeps no attributes of them: one file for each pod, in a
// directory that a boot clears.
//
// Words:
//
//   - record: what cgroup.Records keeps; this package does not look into it.
//
// Invariants: the directory is berthd's alone (mode 0700, and owned by the user that
// berthd runs as); a record is replaced by a rename, so it is there as a whole or not
// at all; no link is followed. Records are not synced: what lives does not outlive the
// boot either.
package claimfiles

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	dirMode  = 0o700
	fileMode = 0o600
	// largest is more than a record may have; of a larger file no more is read.
	largest = 64 << 10
	// unfinished begins the names of files that are being written. No pod's cgroup
	// begins like this.
	unfinished = "."
)

// Files are the records in a directory. They are safe for concurrent use; of writes to
// one record at the same time the last one counts.
type Files struct {
	path   string
	dir    *os.Root
	folder folder
}

var _ cgroup.Records = (*Files)(nil)

// bootFile names the boot that the records are of.
const bootFile = unfinished + "boot"

// Open opens the directory, and makes it where there is none. Records of another boot than
// the given one are removed: their pods have ended, and a power cut may have left parts of
// them. A directory that somebody else owns or can write to is an error of class
// Precondition that says what to do.
func Open(path, boot string) (*Files, error) {
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
		return nil, errdefs.Preconditionf("open the directory of claim records: %s is owned by uid %d, not by berthd's %d: remove it", path, owner, os.Geteuid())
	case info.Mode().Perm()&0o077 != 0:
		return nil, errdefs.Preconditionf("open the directory of claim records: %s has mode %#o, others must not reach it: chmod 0700", path, info.Mode().Perm())
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, errdefs.Unavailablef("open the directory of claim records: %w", err)
	}
	folder, err := openFolder(dir)
	if err != nil {
		return nil, errors.Join(errdefs.Unavailablef("open the directory of claim records: %w", err), dir.Close())
	}
	f := &Files{path: path, dir: dir, folder: folder}
	if err := f.begin(boot); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// begin removes what is not of this boot, and files that a crash has left empty.
func (f *Files) begin(boot string) error {
	was, err := f.read(bootFile)
	same := err == nil && string(was) == boot
	names, err := f.Names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if info, err := f.dir.Lstat(name); same && (err != nil || info.Size() > 0) {
			continue
		}
		if err := f.folder.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f.failed("remove", name, err)
		}
	}
	if same {
		return nil
	}
	if err := f.write(bootFile, []byte(boot)); err != nil {
		return f.failed("write", bootFile, err)
	}
	return nil
}

// Close lets go of the directory. The records stay.
func (f *Files) Close() error { return errors.Join(f.folder.close(), f.dir.Close()) }

// Names lists the base names of the cgroups that have records, sorted.
func (f *Files) Names() ([]string, error) {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return nil, errdefs.Unavailablef("list the claim records: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), unfinished) {
			names = append(names, e.Name())
		}
	}
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
	return f.read(base)
}

func (f *Files) read(base string) ([]byte, error) {
	in, err := f.dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, f.failed("read", base, err)
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return nil, f.failed("read", base, err)
	}
	if !info.Mode().IsRegular() {
		return nil, errdefs.PermissionDeniedf("read the claim record %s: it is no regular file", filepath.Join(f.path, base))
	}
	if owner, known := owner(info); known && owner != os.Geteuid() {
		return nil, errdefs.PermissionDeniedf("read the claim record %s: it is owned by uid %d, not by berthd's %d", filepath.Join(f.path, base), owner, os.Geteuid())
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

// WriteRecord implements cgroup.Records. The files know no cgroups, so none is absent.
func (f *Files) WriteRecord(ctx context.Context, name cgroup.Name, record []byte) error {
	base, err := file(name)
	if err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if record == nil {
		if err := f.folder.remove(base); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return f.failed("remove", base, err)
		}
		return nil
	}
	if len(record) <= atOnce {
		err := f.folder.create(base, record)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, fs.ErrExist):
			_ = f.folder.remove(base)
			return f.failed("write", base, err)
		}
	}
	next := unfinished + base
	if len(next) > maxName {
		next = next[:maxName] // of uids of that length the last differ enough
	}
	if err := f.write(next, record); err != nil {
		_ = f.folder.remove(next)
		return f.failed("write", base, err)
	}
	if err := f.folder.rename(next, base); err != nil {
		return f.failed("write", base, err)
	}
	return nil
}

const (
	// maxName is how long a file's name may be.
	maxName = 255
	// atOnce is what one call writes as a whole or not at all, also if the process is
	// killed in it: a page of memory. A record that is not there yet needs no rename then;
	// a crash can leave an empty file, which is no record.
	atOnce = 4096
)

// write makes a file of its own: one that is there was left by a crash.
func (f *Files) write(name string, record []byte) error {
	err := f.folder.create(name, record)
	if errors.Is(err, fs.ErrExist) {
		if err := f.folder.remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err = f.folder.create(name, record)
	}
	return err
}

func (f *Files) failed(doing, base string, err error) error {
	return fmt.Errorf("%s the claim record %s: %w", doing, filepath.Join(f.path, base), errdefs.Unavailablef("%w", err))
}
