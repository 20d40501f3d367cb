package endpoint

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/berthd/berth/managers/errdefs"
)

// Dial connects to the unix socket at a path if it belongs to a user and a process of that user serves it. Otherwise
// the error is of class PermissionDenied, and nothing has been written to the socket.
func Dial(ctx context.Context, path string, uid uint32) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nothing(path, uid)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK || stat.Uid != uid {
		return nil, nothing(path, uid)
	}
	c, err := new(net.Dialer).DialContext(ctx, "unix", "/proc/self/fd/"+strconv.Itoa(fd))
	if err != nil {
		return nil, fmt.Errorf("connect to socket %s: %w", path, err)
	}
	by, err := server(c)
	if err == nil && by != uid {
		err = errdefs.PermissionDeniedf("socket %s belongs to user %d and is served by user %d: expected the same", path, uid, by)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// nothing is the one error for every path without a socket of the user, so that it reveals
// nothing.
func nothing(path string, uid uint32) error {
	return errdefs.PermissionDeniedf("no socket of user %d is at %s", uid, path)
}

// Server returns the id of the process that listens at the unix socket at a path. Where
// another program has made the socket for it (systemd's socket units), that one is returned.
func Server(ctx context.Context, path string) (pid int, err error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", path)
	if err != nil {
		return 0, errdefs.Unavailablef("find out who serves socket %s: %w", path, err)
	}
	defer func() { _ = c.Close() }()
	by, err := credentials(c)
	if err != nil {
		return 0, errdefs.Unavailablef("find out who serves socket %s: %w", path, err)
	}
	return int(by.Pid), nil
}

// server returns the user of the process that listens at the other end of a connection.
func server(c net.Conn) (uid uint32, err error) {
	by, err := credentials(c)
	if err != nil {
		return 0, err
	}
	return by.Uid, nil
}

// credentials returns the user and process that listen at the other end of a connection (unix(7),
// SO_PEERCRED).
func credentials(c net.Conn) (by *unix.Ucred, err error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) { by, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if cerr != nil {
		return nil, cerr
	}
	return by, err
}
