package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/host/descriptors"
)

// Bounds limit the simultaneous connections and calls of users other than root and berthd's own.
// All users without a role count as one user, and so do users with their roles by the same group.
// Users of a user namespace (user_namespaces(7)) therefore have no advantage.
type Bounds struct {
	// Connections and Calls of each user; 0 means 64 and 256.
	Connections, Calls int
	// Bytes that the messages of each user's calls take; 0 means twice as many as one
	// message may have, which is the least.
	Bytes int
	// Slots are how many costly calls of all of them run at a time; 0 means 1.
	Slots int
}

// What a user has at once unless configured.
const (
	defaultConnections = 64
	defaultCalls       = 256
)

// The limits of all users without a role together. They suffice to get the error.
const (
	unprivilegedConnections = 16
	unprivilegedCalls       = 32
	// unprivilegedLife is how long one of their connections lasts.
	unprivilegedLife = 5 * time.Second
)

// maxRefusals is how many calls are refused on one connection before it is closed.
// A refused call costs memory until its connection ends, since gRPC leaves the
// call's context behind.
const maxRefusals = 256

// Refusals are logged this often, and in bursts of that many.
const (
	refusalLogEvery = 100 * time.Millisecond
	refusalLogBurst = 20
)

// limiter counts the connections and calls of users. Root and berthd's own user are not counted,
// so other users cannot block them.
type limiter struct {
	access  Access
	bounds  Bounds
	limits  *atomic.Pointer[Limits] // in place of Connections and Calls of bounds
	observe func(method string, err error, start time.Time)
	log     *slog.Logger
	logging *rate.Limiter
	slots   *slots

	mu    sync.Mutex
	users map[user]*load // guarded by mu; without users that have nothing
}

// user is a uid, all that have their roles by a group, or all without a role.
type user struct {
	id   uint32
	kind userKind
}

type userKind int

const (
	byUID userKind = iota
	byGID
	withoutRole
	ofPage
)

// load is what a user has.
type load struct {
	connections, calls int
	// reading allows one call to read its message, turn allows one call to run, and bytes limits
	// the memory of messages. They are set once.
	reading, turn, bytes *room
	// answers limits unread answers; frames limits frames outside of calls.
	answers *room
	frames  *rate.Limiter

	mu   sync.Mutex
	open map[*counted]struct{} // guarded by mu; connections
}

func newLimiter(cfg Config) *limiter {
	if cfg.limits == nil {
		cfg.limits = cfg.firstLimits()
	}
	c := &limiter{
		access: *cfg.Access, bounds: cfg.Bounds, limits: cfg.limits, observe: cfg.observe, log: cfg.Log,
		logging: rate.NewLimiter(rate.Every(refusalLogEvery), refusalLogBurst), users: map[user]*load{},
	}
	c.bounds.Bytes = max(c.bounds.Bytes, 2*cfg.MaxReceiveBytes)
	c.slots = newSlots(max(1, c.bounds.Slots))
	return c
}

// of returns the user that a peer counts as, and its limits; false if it is not counted.
func (c *limiter) of(p Peer) (user, Bounds, bool) {
	switch {
	case c.access.trusts(p):
		return user{}, Bounds{}, false
	case !c.access.knows(p):
		return user{kind: withoutRole}, Bounds{Connections: unprivilegedConnections, Calls: unprivilegedCalls}, true
	}
	bounds, limits := c.bounds, c.limits.Load()
	bounds.Connections, bounds.Calls = limits.Connections, limits.Calls
	if p.Page {
		return user{kind: ofPage}, bounds, true
	}
	if gid, ok := c.access.byGroup(p); ok {
		return user{gid, byGID}, bounds, true
	}
	return user{p.UID, byUID}, bounds, true
}

// add changes the counts of a user by one connection or call more, unless that is
// too many; less undoes it.
func (c *limiter) add(u user, bound int, count func(*load) *int) (l *load, less func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l = c.users[u]
	if l == nil {
		l = &load{reading: &room{left: 1}, turn: &room{left: 1}, bytes: &room{left: c.bounds.Bytes},
			answers: &room{left: c.bounds.Bytes}, frames: newFrameLimit(), open: map[*counted]struct{}{},
		}
		c.users[u] = l
	}
	if *count(l) >= bound {
		return nil, nil, false
	}
	*count(l)++
	return l, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if *count(l)--; l.connections == 0 && l.calls == 0 {
			delete(c.users, u)
		}
	}, true
}

func connections(l *load) *int { return &l.connections }
func calls(l *load) *int       { return &l.calls }

// counted is a connection that is part of what its user has.
type counted struct {
	net.Conn
	once     sync.Once
	less     func()
	answers  answers
	user     *load
	closed   chan struct{}
	received frames // of gRPC's one reader
	refusals atomic.Int32
	end      *time.Timer // of the connection; nil if it lasts
}

// Read implements net.Conn.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	_, cost := c.received.follow(b[:n])
	c.pace(cost)
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.answers.written(b[:n])
	return n, err
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.less()
		c.answers.end()
		if c.end != nil {
			c.end.Stop()
		}
	})
	return c.Conn.Close()
}

// link is a Peer with its connection.
type link struct {
	Peer
	conn *counted
}

// limiterCredentials are PeerCredentials that refuse connections above the limit, and those that would take
// the last descriptors.
type limiterCredentials struct {
	credentials.TransportCredentials
	limiter *limiter
}

// ServerHandshake implements credentials.TransportCredentials.
func (cc limiterCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := cc.TransportCredentials.ServerHandshake(c)
	if err != nil {
		return nil, nil, err
	}
	who, ok := info.(Peer)
	if !ok {
		return nil, nil, fmt.Errorf("connection of %T", info)
	}
	u, bounds, ok := cc.limiter.of(who)
	if !ok {
		return c, who, nil
	}
	if descriptors.Few() {
		return nil, nil, fmt.Errorf("connection of %s: the last file descriptors are for root", who)
	}
	l, less, ok := cc.limiter.add(u, bounds.Connections, connections)
	if !ok {
		return nil, nil, fmt.Errorf("%s has %d connections already", who, bounds.Connections)
	}
	conn := l.opened(c, less)
	if u.kind == withoutRole {
		conn.end = time.AfterFunc(unprivilegedLife, func() { _ = c.Close() }) // gRPC then closes conn
	}
	return conn, link{who, conn}, nil
}

// opened makes a connection one of a user's.
func (l *load) opened(c net.Conn, less func()) *counted {
	conn := &counted{
		Conn: c, user: l, answers: answers{room: l.answers}, closed: make(chan struct{}), received: frames{skip: preface},
	}
	conn.less = func() {
		l.mu.Lock()
		delete(l.open, conn)
		l.mu.Unlock()
		less()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = struct{}{}
	return conn
}

// Clone implements credentials.TransportCredentials.
func (cc limiterCredentials) Clone() credentials.TransportCredentials { return cc }

// tap checks every call before its message is read. It refuses callers without a role that the
// method could require, and users with too many calls in progress.
func (c *limiter) tap(ctx context.Context, info *tap.Info) (context.Context, error) {
	start := time.Now()
	if err := c.access.mayAuthorize(ctx, info.FullMethodName); err != nil {
		paceRefusal(ctx)
		return nil, c.refuse(ctx, info.FullMethodName, start, err)
	}
	who, _ := PeerOf(ctx)
	u, bounds, ok := c.of(who)
	if !ok {
		return ctx, nil
	}
	l, less, ok := c.add(u, bounds.Calls, calls)
	if !ok {
		err := errdefs.Exhaustedf("%s has %d calls under way already", who, bounds.Calls).Coded(errdefs.TooManyCalls)
		err.RetryAfter = retryAfter
		paceRefusal(ctx)
		return nil, c.refuse(ctx, info.FullMethodName, start, err)
	}
	t := &ticket{who: who, user: u, load: l, slots: c.slots, less: less}
	if l, ok := linkOf(ctx); ok {
		t.conn = l.conn
	}
	t.keep = context.AfterFunc(ctx, t.end)
	return context.WithValue(ctx, ticketKey{}, t), nil
}

// paceRefusal limits the rate of refused calls to the rate of canceled ones. It blocks, and
// gRPC's reader of the connection with it.
func paceRefusal(ctx context.Context) {
	if l, ok := linkOf(ctx); ok {
		l.conn.pace(refusalCost)
	}
}

// ticket is a call's part of what its user has under way.
type ticket struct {
	who  Peer
	user user
	load *load
	conn *counted // nil if unknown
	less func()
	// slots are the slots of all users.
	slots *slots
	// keep has the call count until end is called. It is false if the call was over before.
	keep func() bool

	mu    sync.Mutex
	over  bool
	bytes int  // what its message takes
	turn  bool // it has the user's turn
	slot  slotState
}

// took notes what the call's message takes until the end.
func (t *ticket) took(bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		t.load.bytes.leave(bytes)
		return
	}
	t.bytes += bytes
}

// end gives everything back. It is called once.
func (t *ticket) end() {
	t.mu.Lock()
	t.over = true
	t.load.bytes.leave(t.bytes)
	t.leaveTurn()
	t.mu.Unlock()
	t.less()
}

type ticketKey struct{}

// begin starts the handler of a call. The call counts until end, because a handler may need a
// while to notice a cancellation. A call that is already over is an error.
func begin(ctx context.Context) (end func(), err error) {
	t, ok := ctx.Value(ticketKey{}).(*ticket)
	switch {
	case !ok:
		return func() {}, nil
	case !t.keep():
		return nil, status.FromContextError(context.Cause(ctx)).Err()
	}
	return t.end, nil
}

func (c *limiter) beginUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if _, counted := ctx.Value(ticketKey{}).(*ticket); !counted {
		c.slots.quiet.begin()
		defer c.slots.quiet.end()
	}
	end, err := begin(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	return next(ctx, req)
}

func beginStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	end, err := begin(ss.Context())
	if err != nil {
		return err
	}
	defer end()
	return next(srv, ss)
}

// options make a server count. They come before all others, so that nothing of a call
// runs uncounted.
func (c *limiter) options(who credentials.TransportCredentials) []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.Creds(visitCredentials{limiterCredentials{who, c}, newVisits(c.log, newLines())}), grpc.InTapHandle(c.tap),
		grpc.ChainUnaryInterceptor(c.beginUnary), grpc.ChainStreamInterceptor(beginStream),
	}
}

// refuse ends a call that no interceptor will see.
func (c *limiter) refuse(ctx context.Context, method string, start time.Time, err error) error {
	ctx = withRequestID(ctx)
	err = Status(ctx, err)
	c.observe(method, err, start)
	if c.logging.Allow() {
		c.log.WarnContext(ctx, "refused call", append(logFields(ctx), "grpc.method", method, "error", err)...)
	}
	if l, ok := linkOf(ctx); ok && l.conn.refusals.Add(1) == maxRefusals {
		go func() { _ = l.conn.Close() }() // not while gRPC writes the answer
	}
	return err
}
