package rpc

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/tap"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/descriptors"
)

// idleTime is how long a connection without calls stays open on a socket without roles.
const idleTime = time.Minute

// unlimited are the options of a server without roles: it refuses a call before it reads the message, and closes
// idle connections.
func (cfg Config) unlimited(peers credentials.TransportCredentials) []grpc.ServerOption {
	options := []grpc.ServerOption{grpc.Creds(peers), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTime})}
	if cfg.Limiter == nil {
		return options
	}
	return append(options, grpc.InTapHandle(func(ctx context.Context, _ *tap.Info) (context.Context, error) {
		if !cfg.Limiter.Allow() {
			return ctx, Status(ctx, errdefs.Exhaustedf("rejected by rate limit").Coded(errdefs.TooManyCalls))
		}
		return ctx, nil
	}))
}

// LeaveDescriptors returns a listener that closes connections that would take the last descriptors, at once. Those of root over a
// unix socket stay.
func LeaveDescriptors(l net.Listener) net.Listener { return leavingListener{l} }

type leavingListener struct{ net.Listener }

// Accept implements net.Listener.
func (l leavingListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if who, err := PeerOfConn(c); !descriptors.Few() || err == nil && who.UID == 0 {
			return c, nil
		}
		_ = c.Close()
	}
}

// AtMost returns a listener that has at most so many open connections. It closes those above at once.
func AtMost(l net.Listener, n int) net.Listener {
	return &boundedListener{Listener: l, open: make(chan struct{}, n)}
}

type boundedListener struct {
	net.Listener
	open chan struct{}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.open <- struct{}{}:
			return &boundedConn{Conn: c, leave: sync.OnceFunc(func() { <-l.open })}, nil
		default:
			_ = c.Close()
		}
	}
}

type boundedConn struct {
	net.Conn
	leave func()
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}

// SyscallConn gives PeerOfConn the descriptor.
func (c *boundedConn) SyscallConn() (syscall.RawConn, error) {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("connection of type %T has no file descriptor", c.Conn)
	}
	return conn.SyscallConn()
}
