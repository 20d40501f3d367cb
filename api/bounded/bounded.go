// Package bounded limits the connections of an HTTP server. A user who holds them all keeps nobody else out: a full server closes
// the connection that has waited longest for a request.
package bounded

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// Listener has a limited number of connections. More of them wait in the kernel's queue, where they take no file descriptor of the
// process, while each connection is in a call.
type Listener struct {
	net.Listener
	most int

	mu     sync.Mutex // guards the fields below
	change *sync.Cond // room, a connection that waits, or the end
	open   int
	idle   []*conn // without a call, the one that has waited longest first; nil without Serve
	closed bool
}

// New limits a listener to a number of connections.
func New(l net.Listener, most int) *Listener {
	b := &Listener{Listener: l, most: most}
	b.change = sync.NewCond(&b.mu)
	return b
}

// Accept implements net.Listener.
func (b *Listener) Accept() (net.Conn, error) {
	b.mu.Lock()
	for b.open >= b.most && len(b.idle) == 0 && !b.closed {
		b.change.Wait()
	}
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return nil, net.ErrClosed
	}
	inner, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	var oldest *conn
	if b.open >= b.most && len(b.idle) > 0 {
		oldest = b.idle[0]
	}
	b.open++
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return &conn{Conn: inner, of: b}, nil
}

// Close implements net.Listener.
func (b *Listener) Close() error {
	b.mu.Lock()
	b.closed = true
	b.change.Broadcast()
	b.mu.Unlock()
	return b.Listener.Close()
}

// Serve serves HTTP on the listener, as s.Serve does. Connections without a call may be closed for new ones.
func (b *Listener) Serve(s *http.Server) error {
	handler, with := s.Handler, s.ConnContext
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, ok := r.Context().Value(connKey{}).(*conn); ok {
			c.wait(false)
		}
		handler.ServeHTTP(w, r)
	})
	s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if with != nil {
			ctx = with(ctx, c)
		}
		return context.WithValue(ctx, connKey{}, under(c))
	}
	s.ConnState = func(c net.Conn, state http.ConnState) {
		if c := under(c); c != nil && (state == http.StateNew || state == http.StateIdle) {
			c.wait(true)
		}
	}
	return s.Serve(b)
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// under returns the connection of this package, also below TLS.
func under(c net.Conn) *conn {
	if outer, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = outer.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

// conn is a connection that takes room until it is closed.
type conn struct {
	net.Conn
	of *Listener

	gone bool // guarded by of.mu
}

// wait records that the connection waits for a request, or does not any more.
func (c *conn) wait(waits bool) {
	b := c.of
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(c)
	if waits && !c.gone {
		b.idle = append(b.idle, c)
		b.change.Broadcast()
	}
}

// remove takes a connection out of the list of those that wait. The caller holds mu.
func (b *Listener) remove(c *conn) {
	for i, other := range b.idle {
		if other == c {
			b.idle = append(b.idle[:i], b.idle[i+1:]...)
			return
		}
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	b := c.of
	b.mu.Lock()
	if !c.gone {
		c.gone = true
		b.open--
		b.remove(c)
		b.change.Broadcast()
	}
	b.mu.Unlock()
	return c.Conn.Close()
}

// SyscallConn implements syscall.Conn if the connection does, so that the peer's credentials can
// be read.
func (c *conn) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
