package beneath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// Root opens a directory that paths are below of. Links in its path are followed.
func Root(path string) (*os.File, error) {
	return openat(unix.AT_FDCWD, path, path, unix.O_PATH|unix.O_DIRECTORY)
}

// Private creates a directory that other users cannot enter, and removes their permissions from
// an existing one. A directory of another user is refused, because its owner could restore the
// permissions.
func Private(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	dir, err := openat(unix.AT_FDCWD, path, path, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &stat); err != nil {
		return &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	if int(stat.Uid) != os.Geteuid() {
		return errdefs.Preconditionf("directory %s belongs to user %d, and this process runs as %d: its owner could change what is in it; name another directory, or change the owner", path, stat.Uid, os.Geteuid())
	}
	return dir.Chmod(0o700)
}

// Open opens a file or directory of any kind by its place only, as OpenOrMake, and makes nothing.
func Open(root *os.File, path string) (*os.File, error) {
	return walk(root, path, unix.O_PATH, func(_ int, _ string, err error) error { return err })
}

// OpenOrMake opens a file or directory with O_PATH: it can be examined, mounted and opened below,
// but not read. Missing directories are created with the given permissions, independent of the
// umask.
func OpenOrMake(root *os.File, path string, perm fs.FileMode) (*os.File, error) {
	return walk(root, path, unix.O_PATH, func(parent int, name string, err error) error {
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return mkdirat(parent, name, perm)
	})
}

// File opens a regular file in a directory that Open gave, with the flags of
// open(2). A file of another kind is refused, and not waited for.
func File(dir *os.File, name string, flags int, perm fs.FileMode) (*os.File, error) {
	path := filepath.Join(dir.Name(), name)
	if err := element(name); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(int(dir.Fd()), name, flags|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, uint32(perm.Perm()))
	if errors.Is(err, unix.ELOOP) {
		return nil, linkRefused(path)
	}
	if errors.Is(err, unix.ENXIO) { // a pipe without a reader, or a socket
		return nil, errdefs.PermissionDeniedf("open %s: it is no regular file", path)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "stat", Path: path, Err: err}, f.Close())
	}
	switch {
	case stat.Mode&unix.S_IFMT != unix.S_IFREG:
		err = errdefs.PermissionDeniedf("open %s: it is no regular file", path)
	case stat.Nlink > 1:
		err = errdefs.PermissionDeniedf("open %s: the file has %d names, so it may be another one too; remove it", path, stat.Nlink)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Rename renames a file within a directory that Open gave.
func Rename(dir *os.File, from, to string) error {
	if err := errors.Join(element(from), element(to)); err != nil {
		return err
	}
	if err := unix.Renameat(int(dir.Fd()), from, int(dir.Fd()), to); err != nil {
		return &os.LinkError{Op: "rename", Old: filepath.Join(dir.Name(), from), New: filepath.Join(dir.Name(), to), Err: err}
	}
	return nil
}

// element refuses a name that is more than one element of a path.
func element(name string) error {
	if name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
		return errdefs.Invalidf("open %q: expected the name of a file", name)
	}
	return nil
}

// walk opens each element of a path by its parent. Where one cannot be opened,
// failed may make it and return nil: then it is opened again.
func walk(root *os.File, path string, flags int, failed func(parent int, name string, err error) error) (*os.File, error) {
	if path == "" {
		path = "."
	}
	if !filepath.IsLocal(path) {
		return nil, errdefs.Invalidf("open %q below %s: expected a path without \"..\" that does not begin with a slash", path, root.Name())
	}
	at, err := openat(int(root.Fd()), ".", root.Name(), unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	for _, name := range strings.Split(filepath.Clean(path), "/") {
		if name == "." {
			continue
		}
		full := filepath.Join(at.Name(), name)
		next, err := openat(int(at.Fd()), name, full, flags|unix.O_NOFOLLOW)
		if err != nil {
			if err = failed(int(at.Fd()), name, err); err == nil || errors.Is(err, fs.ErrExist) {
				next, err = openat(int(at.Fd()), name, full, flags|unix.O_NOFOLLOW)
			}
		}
		_ = at.Close()
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// openat opens one element. An error about a link names the link.
func openat(parent int, name, full string, flags int) (*os.File, error) {
	fd, err := unix.Openat(parent, name, flags|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, linkRefused(full)
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: full, Err: err}
	}
	f := os.NewFile(uintptr(fd), full)
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return nil, errors.Join(&fs.PathError{Op: "stat", Path: full, Err: err}, f.Close())
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFLNK { // O_PATH opens the link itself
		return nil, errors.Join(linkRefused(full), f.Close())
	}
	return f, nil
}

func linkRefused(path string) error {
	return errdefs.PermissionDeniedf("open %s: it is a symbolic link, which is not followed: a container could lead it to any file of the machine; put what it leads to in its place", path)
}

// mkdirat creates a directory with exactly the given permissions. The umask belongs to the
// process, so this uses a thread with its own umask. Changing the mode afterwards could affect a
// file that was put there meanwhile.
func mkdirat(parent int, name string, perm fs.FileMode) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // without an unlock: the thread ends with the goroutine
		err := unix.Unshare(unix.CLONE_FS)
		if err == nil {
			unix.Umask(0)
			err = unix.Mkdirat(parent, name, uint32(perm.Perm()))
		}
		done <- err
	}()
	if err := <-done; err != nil {
		return &fs.PathError{Op: "mkdir", Path: name, Err: err}
	}
	return nil
}
