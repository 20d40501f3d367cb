package cgroupfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/cgroup"
)

// readFile and writeFile reach a control file in three or four system calls. An
// os.File takes twice as many: it asks the poller, which control files know and
// nobody here waits on. Both want an absolute path made of checked names.

// readFile gives the text of a control file.
func readFile(path string) (string, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	var text []byte
	buf := make([]byte, 512)
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, buf) })
		if err != nil {
			return "", &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return string(text), nil
		}
		text = append(text, buf[:n]...)
	}
}

// writeFile writes a control file, all at once: the kernel takes every write for a
// value of its own.
func writeFile(path, text string) error {
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	n, err := again(func() (int, error) { return unix.Write(fd, []byte(text)) })
	if err == nil && n < len(text) {
		err = io.ErrShortWrite
	}
	if closed := unix.Close(fd); err == nil {
		err = closed
	}
	if err != nil {
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func open(path string, flags int) (fd int, err error) {
	fd, err = again(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0) })
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// again repeats a system call that a signal broke off.
func again(do func() (int, error)) (n int, err error) {
	for {
		if n, err = do(); !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// fewestShares and mostShares are the kernel's bounds; without a word it sets the
// nearest number to what lies beyond.
const fewestShares, mostShares = 2, 1 << 18

// plain reports whether values of v1 can be written each into its file and be done
// with. The others take what the library does besides: a look at what is there
// now, a second file, a check of what the kernel has made of it.
func plain(v cgroup.Values) bool {
	shares, memory := value(v.CPUShares), value(v.MemoryBytes)
	return v.MemorySwapBytes == nil && len(v.HugePages) == 0 && memory >= 0 &&
		(v.CPUShares == nil || shares >= fewestShares && shares <= mostShares)
}

// writePlain writes the files of a v1 cgroup in their order.
func (d *Driver) writePlain(name cgroup.Name, files []cgroup.File) error {
	for _, f := range files {
		controller, _, _ := strings.Cut(f.Name, ".")
		h, ok := d.hierarchy(controller)
		if !ok {
			return &os.PathError{Op: "open", Path: f.Name, Err: unix.ENOENT}
		}
		if err := writeFile(d.absolute(h, name)+"/"+f.Name, f.Text); err != nil {
			return err
		}
	}
	return nil
}

// absolute gives the directory of a cgroup.
func (d *Driver) absolute(h hierarchy, name cgroup.Name) string {
	return filepath.Join(d.mount, h.path(name))
}
