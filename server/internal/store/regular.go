package store

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/berthd/berth/api/input"
	"github.com/berthd/berth/api/ledgerfile"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger/journal"
)

// openRegular opens a regular file, or a symbolic link to one. The type is checked before,
// because opening a device can have effects and opening a named pipe blocks, and again
// afterwards. Another type of file is an error of class Precondition; other errors are the
// system's.
func openRegular(path string, flags int, mode fs.FileMode) (*os.File, error) {
	if info, err := os.Stat(path); err == nil {
		if err := regular(path, info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK|syscall.O_NOCTTY|syscall.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(path, info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// regular refuses other types of files, by name.
func regular(path string, info fs.FileInfo) error {
	var what string
	switch mode := info.Mode(); {
	case mode.IsRegular():
		return nil
	case mode.IsDir():
		what = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	default:
		what = "a " + mode.Type().String()
	}
	return errdefs.Preconditionf("%s is %s, not a regular file: move it away, or name another state directory", path, what)
}

// readFile reads a whole regular file. One that is larger than any ledger is an error of class
// Precondition.
func readFile(path string, largest int64) ([]byte, error) {
	f, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, opening("read", path, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, unavailable("read", path, err)
	}
	if info.Size() > largest {
		return nil, errdefs.Preconditionf("%s has %d bytes, and no ledger has more than %d: move it away, or name another state directory",
			path, info.Size(), largest)
	}
	data, err := input.Opened(f, path, largest)
	if err != nil {
		return nil, unavailable("read", path, err)
	}
	return data, nil
}

// checkFile checks the pages of the file at path, and returns whether most of it is free. An error of
// class Corrupt names the damage.
func checkFile(path string, largest int64) (sparse bool, err error) {
	data, err := readFile(path, largest)
	if err != nil {
		return false, err
	}
	free, err := ledgerfile.Check(path, data)
	return free >= compactedFrom && free > int64(len(data))/2, err
}

// salvageFile reads what is whole in the file at path.
func salvageFile(path string) (journal.Found, error) {
	data, err := readFile(path, ledgerfile.Largest)
	if err != nil {
		return journal.Found{}, err
	}
	return ledgerfile.Salvage(path, data), nil
}

// opening is unavailable, except for what openRegular refuses.
func opening(operation, path string, err error) error {
	if errdefs.ClassOf(err) == errdefs.Precondition {
		return err
	}
	return unavailable(operation, path, err)
}
