package rpc

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/berthd/berth/managers/errdefs"
)

// gRPC takes an answer when the handler returns, and keeps it until the other end can receive it.
// A client that reads nothing would therefore fill berthd's memory. Each connection of a user
// other than root counts the bytes of its unwritten answers. No call of the user begins while
// they exceed limits.userBytes. The check is made when a call gets its turn, and again when it
// gets a slot. Otherwise all calls that wait for the slot would begin before the first of them
// has been answered.
//
// An answer is encoded and counted while its call has the slot or the turn. The messages that a
// handler returns take ten times as much memory as their encoding. Without this rule, many calls
// with unencoded answers could exist at once.

// stalled is how long a connection may have unread answers while calls of its user wait for their
// memory. Then the connection is closed. A canceled call whose answer was not written counts
// until then, too.
const stalled = 5 * time.Second

// answers is what a connection has been answered and not been sent.
type answers struct {
	room *room // the user's

	mu     sync.Mutex
	bytes  int       // guarded by mu
	since  time.Time // guarded by mu; the newest byte of an answer was sent then
	closed bool      // guarded by mu
	frames frames    // guarded by mu
}

// add counts the bytes of an answer that is about to be sent.
func (a *answers) add(bytes int) {
	size := headerSize + bytes
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return
	}
	if a.bytes == 0 {
		a.since = time.Now()
	}
	a.bytes += size
	a.room.take(size)
}

// headerSize is what gRPC puts before a message.
const headerSize = 5

// written subtracts bytes that went to the other end.
func (a *answers) written(b []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	data, _ := a.frames.follow(b)
	n := min(data, a.bytes)
	if n == 0 || a.closed {
		return
	}
	a.since = time.Now()
	a.bytes -= n
	a.room.leave(n)
}

// end releases the connection's bytes after its end.
func (a *answers) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.closed = true
		a.room.leave(a.bytes)
	}
}

// isStalled reports whether an answer has been unread for too long.
func (a *answers) isStalled() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes > 0 && time.Since(a.since) >= stalled
}

// encoded is an answer that the codec takes as it is.
type encoded struct{ data mem.BufferSlice }

// encode encodes the answer of a call of a user other than root and counts its bytes. Other
// answers are returned as they are.
func encode(ctx context.Context, answer any) (any, error) {
	t, counted := ctx.Value(ticketKey{}).(*ticket)
	m, ok := answer.(proto.Message)
	if !counted || t.conn == nil || !ok {
		return answer, nil
	}
	data, err := marshal(m)
	if err != nil {
		return nil, Status(ctx, err)
	}
	t.conn.answers.add(data.Len())
	return encoded{data}, nil
}

// awaitReading waits until the answers that the call's user has not read leave room for
// more. Connections that have not moved for a while are closed.
func (t *ticket) awaitReading(ctx context.Context) error {
	for {
		limited, cancel := context.WithTimeout(ctx, stalled)
		err := t.load.answers.enter(limited, 1)
		cancel()
		switch {
		case err == nil:
			t.load.answers.leave(1)
			return nil
		case ctx.Err() != nil:
			err := errdefs.Exhaustedf("answers that %s has not read have as many bytes as limits.userBytes allows", t.who)
			err.RetryAfter = retryAfter
			return err
		}
		t.load.closeStalled()
	}
}

// closeStalled closes the connections with answers unread for too long.
func (l *load) closeStalled() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		if c.answers.isStalled() {
			_ = c.Conn.Close() // gRPC notices, and closes c
		}
	}
}
