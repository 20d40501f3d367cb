package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/server/internal/host/disk"
)

// inPlace reports whether the next start would find this file and this lock under their names.
// Another process may have removed or replaced them, or their directory. It takes two calls of
// stat. A missing lock is acquired again. Errors: journal.ErrDetached if the file is not in place,
// class Unavailable if that is unknown, and Conflict, permanently, if another process has the
// lock.
func (s *Store) inPlace() error {
	if s.opts.ReadOnly {
		return nil
	}
	if s.broken != nil {
		return s.broken
	}
	if err := sameFile(s.path, &s.own); err != nil {
		return err
	}
	err := sameFile(s.lock.path, &s.lock.own)
	if !errors.Is(err, journal.ErrDetached) {
		return err
	}
	if err := s.relock(); err != nil {
		return err
	}
	s.notice("the lock file %s was removed or replaced while berthd ran; berthd has created it again", lockPath(s.path))
	return nil
}

// InPlace returns journal.ErrDetached if the next start would not find the committed state. It
// waits for a commit in progress.
func (s *Store) InPlace() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.db == nil {
		return errdefs.Unavailablef("look for %s: it is closed", s.path)
	}
	return errors.Join(s.inPlace(), s.unwritten())
}

// sameFile reports whether a path leads to an open file. No other file has its number as
// long as it is open.
func sameFile(path string, own *syscall.Stat_t) error {
	var there syscall.Stat_t
	switch err := stat(path, &there); {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return errdefs.Unavailablef("%w: %s was removed: %w", journal.ErrDetached, path, err)
	case err != nil:
		return unavailable("look at", path, err)
	case own.Dev != there.Dev || own.Ino != there.Ino:
		return errdefs.Unavailablef("%w: %s was replaced", journal.ErrDetached, path)
	}
	return nil
}

// stat repeats the call after a signal.
func stat(path string, info *syscall.Stat_t) error {
	for {
		if err := syscall.Stat(path, info); !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// unwritten reports whether the file is as the last acknowledged commit left it. Copying another
// file over the open file does not replace the inode. bbolt maps the file, and would continue
// with the copied content.
func (s *Store) unwritten() error {
	if s.ahead {
		return errdefs.Unavailablef("%w: %s has a change that was not acknowledged", journal.ErrDetached, s.path)
	}
	var own syscall.Stat_t
	if err := syscall.Fstat(int(s.file.Fd()), &own); err != nil {
		return unavailable("look at", s.path, err)
	}
	if own.Size < s.size {
		return errdefs.Unavailablef("%w: %s was truncated to %d bytes", journal.ErrDetached, s.path, own.Size)
	}
	var number [8]byte
	if _, err := s.file.ReadAt(number[:], int64(s.txid%2)*s.pageSize+ledgerfile.TxidOffset); err != nil {
		return unavailable("read", s.path, err)
	}
	if found := binary.NativeEndian.Uint64(number[:]); found != uint64(s.txid) {
		return errdefs.Unavailablef("%w: %s was written over", journal.ErrDetached, s.path)
	}
	return nil
}

// relock acquires the lock again. If another process has it, that process owns the directory now,
// and this one never commits again.
func (s *Store) relock() error {
	lock, err := acquire(filepath.Dir(s.path))
	if err != nil {
		if errdefs.ClassOf(err) == errdefs.Conflict && s.broken == nil {
			s.broken = err
			close(s.lost)
		}
		return err
	}
	_ = s.lock.file.Close()
	s.lock = lock
	return nil
}

func (s *Store) notice(format string, args ...any) {
	if s.opts.Notice != nil {
		s.opts.Notice(fmt.Sprintf(format, args...))
	}
}

// Recreate implements journal.Recreator. It writes a whole state to a new file, which takes the
// name atomically, and creates a missing directory or lock. An existing file of that name is kept
// as NAME.replaced-GENERATION.
func (s *Store) Recreate(ctx context.Context, gen uint64, entries []journal.Entry) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(ctx, "recreate"); err != nil {
		return err
	}
	switch {
	case s.broken != nil:
		return s.broken
	case s.opts.ReadOnly:
		return errdefs.Preconditionf("recreate %s: it is open for reading only", s.path)
	case gen < s.last:
		return errdefs.Internalf("recreate %s as generation %d after generation %d", s.path, gen, s.last)
	}
	s.opts.Failpoint.Hit(BeforeRecreate)
	dir := filepath.Dir(s.path)
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return unavailable("create state directory", dir, err)
	}
	if err := sameFile(s.lock.path, &s.lock.own); errors.Is(err, journal.ErrDetached) {
		err = s.relock()
		if err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	if err := build(s.fresh(), entries); err != nil {
		return err
	}
	kept, err := s.keepForeign(gen)
	if err != nil {
		return err
	}
	if err := os.Rename(s.fresh(), s.path); err != nil {
		return unavailable("recreate ledger file", s.path, err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} { // the directory may be new
		if err := disk.Sync(d); err != nil {
			return err
		}
	}
	s.opts.Failpoint.Hit(AfterRecreate)
	// Nothing of the former file counts any more.
	_ = s.db.Close()
	s.db = nil
	if err = s.open(); err == nil {
		err = s.damage
	}
	if err != nil {
		s.broken = errdefs.Unavailablef("open %s after its creation: %w", s.path, err)
		close(s.lost)
		return s.broken
	}
	s.last = gen
	s.notice("the ledger's file %s was removed, replaced or written over while berthd ran, or has a change that was not acknowledged; its whole state, generation %d, was written again%s", s.path, gen, kept)
	return nil
}

// keepForeign renames the file at the ledger's path, and returns its new name.
func (s *Store) keepForeign(gen uint64) (kept string, err error) {
	info, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", unavailable("look at", s.path, err)
	}
	name := fmt.Sprintf("%s.replaced-%d", s.path, gen)
	if info.IsDir() {
		err = os.Rename(s.path, name) // no file can take the name of a directory
	} else {
		err = os.Link(s.path, name)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", unavailable("keep what replaced", s.path, err)
	}
	return ", and the file found there is kept as " + name, nil
}
