package hintproxy

import (
	"context"
	"fmt"
	"net"
	"os"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/wire"
)

// connectionKey is what a connection leads to: the endpoint of a user's process.
type connectionKey struct {
	endpoint string
	uid      uint32
}

// connection is the one to an endpoint. All proxies of the endpoint share it, also those that
// another proxy has replaced.
type connection struct {
	*grpc.ClientConn
	key    connectionKey
	users  int // guarded by connections.mu
	mu     sync.Mutex
	socket os.FileInfo // that was there at the last dial; nil if unknown
	// foreign is why the endpoint was refused.
	foreign string
}

// connections are those of all endpoints. They are safe for concurrent use.
type connections struct {
	dial     Dialer
	maxBytes int

	mu   sync.Mutex
	open map[connectionKey]*connection
}

// acquire returns the connection to an endpoint. It is a new one if the socket is another one than at
// the last dial, because its process is another one then. release has to be called once for each.
func (c *connections) acquire(key connectionKey) (*connection, error) {
	socket, _ := os.Stat(key.endpoint)
	c.mu.Lock()
	defer c.mu.Unlock()
	if have := c.open[key]; have != nil && have.leadsTo(socket) {
		have.users++
		return have, nil
	}
	n := &connection{key: key, users: 1}
	var err error
	// Only the dialer knows the path, so no character of the path is interpreted as part of
	// a URL.
	n.ClientConn, err = grpc.NewClient("passthrough:///localhost",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return n.connect(ctx, c.dial) }),
		grpc.WithConnectParams(redial),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.maxBytes), grpc.ForceCodecV2(wire.Bounded(maxAnswerElements))),
	)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", key.endpoint, err)
	}
	if c.open == nil {
		c.open = map[connectionKey]*connection{}
	}
	c.open[key] = n
	return n, nil
}

// release closes a connection that nothing uses any more.
func (c *connections) release(n *connection) {
	c.mu.Lock()
	n.users--
	last := n.users == 0
	if last && c.open[n.key] == n {
		delete(c.open, n.key)
	}
	c.mu.Unlock()
	if last {
		_ = n.Close()
	}
}

// connect dials the endpoint, and notes why it was refused.
func (n *connection) connect(ctx context.Context, dial Dialer) (net.Conn, error) {
	socket, _ := os.Stat(n.key.endpoint)
	conn, err := dial(ctx, n.key.endpoint, n.key.uid)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.socket, n.foreign = socket, ""
	if err != nil && errdefs.ClassOf(err) == errdefs.PermissionDenied {
		n.foreign = err.Error()
	}
	return conn, err
}

// leadsTo returns whether a socket may be the one of the last dial.
func (n *connection) leadsTo(socket os.FileInfo) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.socket == nil || socket == nil || os.SameFile(n.socket, socket)
}

// refusal returns why the endpoint was refused; empty if it was not.
func (n *connection) refusal() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.foreign
}
