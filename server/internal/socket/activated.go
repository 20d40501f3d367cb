package socket

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"

	"github.com/berthd/berth/managers/errdefs"
)

// activated takes over a socket that the service manager keeps. It returns nil if the socket's
// file was removed, because clients cannot reach the socket then.
func activated(path string, o Options) (*listener, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err := o.activated.Close(); err != nil {
			return nil, errdefs.Unavailablef("close socket %s, which was removed: %w", path, err)
		}
		return nil, nil
	}
	if err == nil {
		info, err = o.protect(path)
	}
	if err != nil {
		return nil, errdefs.Unavailablef("take over socket %s from systemd: %w", path, errors.Join(err, o.activated.Close()))
	}
	o.activated.SetUnlinkOnClose(false)
	return &listener{UnixListener: o.activated, path: path, info: info, kept: true, served: make(chan struct{})}, nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	if !l.kept {
		return c, nil
	}
	l.opening.Add(1)
	return &opening{UnixConn: c, opened: sync.OnceFunc(l.opening.Done)}, nil
}

// opened waits until something has been written to each connection, or it was closed. A
// server that writes nothing to a new connection would end it before its calls are read.
func (l *listener) opened(ctx context.Context) error {
	select {
	case <-l.served:
	case <-ctx.Done():
		return ctx.Err()
	}
	done := make(chan struct{})
	go func() { l.opening.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// opening is a connection that calls opened when it is first used.
type opening struct {
	*net.UnixConn
	opened func()
}

func (c *opening) Write(p []byte) (int, error) {
	n, err := c.UnixConn.Write(p)
	c.opened()
	return n, err
}

func (c *opening) Close() error {
	err := c.UnixConn.Close()
	c.opened()
	return err
}
