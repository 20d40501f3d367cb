package socket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

// maxPath is how long a socket's path may be: sun_path of unix(7) has 108 bytes,
// one of which ends the string.
const maxPath = 107

// staging is put before the base name while the socket is not yet in place. A
// leading dot keeps watchers of the directory from taking it for a plugin.
const staging = ".new-"

// CheckPath refuses paths that cannot be bound, with the arithmetic.
func CheckPath(path string) error {
	if !filepath.IsAbs(path) {
		return errdefs.Invalidf("socket path %q: expected an absolute path", path)
	}
	if n := len(path) + len(staging); n > maxPath {
		return errdefs.Invalidf(
			"socket path %q: %d bytes and %d for the name it is made under are %d, but the kernel takes at most %d (unix(7), sun_path); choose a shorter directory",
			path, len(path), len(staging), n, maxPath)
	}
	return nil
}

// Options of a socket.
type Options struct {
	// DirMode and Mode are the permissions of a directory that must be made, and
	// of the socket. Zero means 0750 and 0660.
	DirMode, Mode os.FileMode
	// Group is the socket's, by name or number; empty leaves it as it is.
	Group string
	// activated is a listening socket at the path that the service manager made and keeps. It
	// is used in place of a new one, unless its file was removed.
	activated *net.UnixListener
}

// Group reads a group's name or number.
func Group(text string) (gid int, err error) {
	if gid, err := strconv.ParseUint(text, 10, 31); err == nil {
		return int(gid), nil
	}
	g, err := user.LookupGroup(text)
	if err != nil {
		return 0, errdefs.Invalidf("%q: expected a group's name or number: %w", text, err)
	}
	return strconv.Atoi(g.Gid)
}

// Listen listens on a unix socket at path. A stale socket is replaced. A served socket is an
// error of class Conflict; another kind of file is an error of class Invalid.
func Listen(path string, o Options) (net.Listener, error) {
	l, err := listen(path, o)
	if err != nil {
		return nil, err
	}
	return l, nil
}

func listen(path string, o Options) (*listener, error) {
	if err := CheckPath(path); err != nil {
		return nil, err
	}
	if o.DirMode == 0 {
		o.DirMode = 0o750
	}
	if o.Mode == 0 {
		o.Mode = 0o660
	}
	if o.activated != nil {
		if l, err := activated(path, o); l != nil || err != nil {
			return l, err
		}
	}
	if err := trust.MkdirAll(filepath.Dir(path), o.DirMode); err != nil {
		return nil, errdefs.Unavailablef("make the directory of socket %s: %w", path, err)
	}
	if err := replaceable(path); err != nil {
		return nil, err
	}
	tmp := filepath.Join(filepath.Dir(path), staging+filepath.Base(path))
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, errdefs.Unavailablef("remove what is left of socket %s: %w", path, err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, errdefs.Unavailablef("listen on socket %s: %w", path, err)
	}
	l.SetUnlinkOnClose(false)
	info, err := o.protect(tmp)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return nil, errdefs.Unavailablef("put socket %s in place: %w", path,
			errors.Join(err, l.Close(), os.Remove(tmp)))
	}
	return &listener{UnixListener: l, path: path, info: info, served: make(chan struct{})}, nil
}

// protect gives the file of a socket its group and mode.
func (o Options) protect(file string) (os.FileInfo, error) {
	if o.Group != "" {
		gid, err := Group(o.Group)
		if err == nil {
			err = os.Lchown(file, -1, gid)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(file, o.Mode); err != nil {
		return nil, err
	}
	return os.Lstat(file)
}

// replaceable refuses to put a socket over something that is none.
func replaceable(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return errdefs.Unavailablef("check socket %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return errdefs.Invalidf("socket path %s: there is a file that is no socket (%s)", path, info.Mode())
	}
	return Unserved(path)
}

// Unserved returns an error of class Conflict if a process listens on the socket at
// path: taking its place would cut its clients off.
func Unserved(path string) error {
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
	}
	// These errors mean a server too: a full queue of connections, a socket of another type, and
	// a missing permission to connect.
	for _, served := range []error{nil, syscall.EAGAIN, syscall.EPROTOTYPE, fs.ErrPermission} {
		if errors.Is(err, served) {
			return errdefs.Conflictf("another process already serves %s: a kubelet (then start berthd with --beside=kubelet), or another berthd with the same path", path)
		}
	}
	return nil
}

// listener removes its file when it is closed, unless the service manager keeps the socket.
type listener struct {
	*net.UnixListener
	path string
	info os.FileInfo
	once sync.Once
	// kept means that the service manager keeps the socket. opening counts its connections before
	// the first write.
	kept    bool
	opening sync.WaitGroup
	// served is closed when the server has taken its last connection from it.
	served chan struct{}
	// ended is set by Close, outdated by replace.
	ended, outdated atomic.Bool
}

// replace stops listening where another listener has taken the place.
func (l *listener) replace() {
	l.outdated.Store(true)
	_ = l.UnixListener.Close()
}

// Addr gives the final path.
func (l *listener) Addr() net.Addr { return &net.UnixAddr{Name: l.path, Net: "unix"} }

// Close stops listening and removes the socket unless another process has put
// its own in its place. It may be called more than once.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.ended.Store(true)
	l.once.Do(func() {
		now, serr := os.Lstat(l.path)
		if serr == nil && os.SameFile(now, l.info) && !l.outdated.Load() && !l.kept {
			serr = os.Remove(l.path)
		}
		if errors.Is(serr, fs.ErrNotExist) {
			serr = nil
		}
		err = errors.Join(l.UnixListener.Close(), serr)
	})
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("close socket %s: %w", l.path, err)
	}
	return err
}
