package socket

import (
	"errors"
	"net"
	"sync"
	"syscall"
)

// Bounded lets a listener have at most n connections at once. More of them wait, in
// the kernel's queue, until one is closed: they take no file descriptors, which the
// whole process has only so many of.
func Bounded(l net.Listener, n int) net.Listener {
	return &bounded{Listener: l, room: make(chan struct{}, n), closed: make(chan struct{})}
}

type bounded struct {
	net.Listener
	room   chan struct{} // holds one for every connection
	closed chan struct{}
	once   sync.Once
}

// Accept implements net.Listener.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.room <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.Listener.Accept()
	if err != nil {
		<-b.room
		return nil, err
	}
	return &member{Conn: c, leave: func() { <-b.room }}, nil
}

// Close implements net.Listener.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.Listener.Close()
}

// member is a connection that takes room until it is closed.
type member struct {
	net.Conn
	once  sync.Once
	leave func()
}

// Close implements net.Conn.
func (m *member) Close() error {
	m.once.Do(m.leave)
	return m.Conn.Close()
}

// SyscallConn implements syscall.Conn if the connection does, so that the peer's credentials can
// be read.
func (m *member) SyscallConn() (syscall.RawConn, error) {
	if c, ok := m.Conn.(syscall.Conn); ok {
		return c.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
