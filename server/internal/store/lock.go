package store

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/managers/errdefs"
)

// lockName is the name of the lock file in the state directory.
const lockName = config.LockFile

// lock is a state directory held by this process.
type lock struct {
	file *os.File
	path string
	own  syscall.Stat_t // of file
}

// lockPath is the lock of the directory that a file is in.
func lockPath(path string) string { return filepath.Join(filepath.Dir(path), lockName) }

// acquire locks a directory, or returns the owner immediately. The kernel releases an flock with
// the last descriptor of its open file, so a crashed owner holds no lock even if the lock file
// contains its pid.
func acquire(dir string) (*lock, error) {
	path := filepath.Join(dir, lockName)
	f, err := openRegular(path, os.O_RDWR|os.O_CREATE, fileMode)
	if err != nil {
		return nil, opening("open lock", path, err)
	}
	l := &lock{file: f, path: path}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = errdefs.Conflictf("state directory %s is in use by another berthd, %s", dir, l.owner())
		_ = f.Close()
		return nil, err
	}
	if err == nil {
		err = syscall.Fstat(int(f.Fd()), &l.own)
	}
	if err == nil {
		err = l.write(strconv.Itoa(os.Getpid()) + "\n")
	}
	if err != nil {
		_ = f.Close()
		return nil, unavailable("lock", path, err)
	}
	return l, nil
}

// acquireReader takes bbolt's own lock on a file for reading, so that no process writes while its
// pages are inspected. If a daemon has the file open, it fails immediately.
func acquireReader(path string) (*os.File, error) {
	f, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, opening("open ledger file", path, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errdefs.Unavailablef("open ledger file %s: a daemon has it open", path)
		}
		return nil, unavailable("lock", path, err)
	}
	return f, nil
}

func (l *lock) write(text string) error {
	if err := l.file.Truncate(0); err != nil {
		return err
	}
	_, err := l.file.WriteAt([]byte(text), 0)
	return err
}

// owner describes the owner of the lock.
func (l *lock) owner() string {
	text, err := io.ReadAll(io.NewSectionReader(l.file, 0, 32))
	pid := strings.TrimSpace(string(text))
	if _, bad := strconv.Atoi(pid); err != nil || bad != nil {
		return "which has not said its pid yet"
	}
	return "pid " + pid
}

// release empties the file and releases the lock explicitly. Closing alone would leave the lock
// to a child that was forked and has not executed its program yet. The file stays: after a
// removal two processes could lock two files of one name.
func (l *lock) release() error {
	return errors.Join(l.file.Truncate(0), syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN), l.file.Close())
}
