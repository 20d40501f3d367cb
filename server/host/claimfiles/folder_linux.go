package claimfiles

import (
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// folder is an open directory. An admission writes a record, so this goes without files
// of Go's, which take longer than the system calls: os.Root asks the poller about each.
// Names have no slash, so nothing outside the directory is reached.
type folder struct {
	file *os.File
	fd   int
}

func openFolder(dir *os.Root) (folder, error) {
	file, err := dir.Open(".")
	if err != nil {
		return folder{}, err
	}
	return folder{file, int(file.Fd())}, nil
}

// create makes a file that is not there and writes it with one call.
func (f folder) create(name string, content []byte) error {
	fd, err := again(func() (int, error) {
		return unix.Openat(f.fd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, fileMode)
	})
	if err != nil {
		return err
	}
	n, err := again(func() (int, error) { return unix.Write(fd, content) })
	if err == nil && n < len(content) {
		err = io.ErrShortWrite
	}
	return errors.Join(err, unix.Close(fd))
}

func (f folder) rename(from, to string) error {
	_, err := again(func() (int, error) { return 0, unix.Renameat(f.fd, from, f.fd, to) })
	return err
}

func (f folder) remove(name string) error {
	_, err := again(func() (int, error) { return 0, unix.Unlinkat(f.fd, name, 0) })
	return err
}

func (f folder) close() error { return f.file.Close() }

// again repeats a call that a signal has interrupted.
func again(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}
