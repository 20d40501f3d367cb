package machine

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
)

// gate bounds the open connections of berthctl web. Every user of the machine can open some: when there are too many,
// the oldest one without a login is closed.
type gate struct {
	most int

	mu   sync.Mutex
	open []*entered // guarded by mu; the oldest first
}

// entered is an open connection.
type entered struct {
	net.Conn
	gate *gate
	// known means that it has made a call with a login. guarded by gate.mu
	known bool
}

// gated is a listener of a gate; several may share one.
type gated struct {
	net.Listener
	gate *gate
}

// Accept implements net.Listener.
func (g gated) Accept() (net.Conn, error) {
	c, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	e := &entered{Conn: c, gate: g.gate}
	if old := g.gate.enter(e); old != nil {
		_ = old.Close()
	}
	return e, nil
}

// enter adds a connection, and returns one to close if there are too many.
func (g *gate) enter(e *entered) *entered {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = append(g.open, e)
	if len(g.open) <= g.most {
		return nil
	}
	for _, old := range g.open {
		if !old.known {
			return old
		}
	}
	return e
}

// Close implements net.Conn.
func (e *entered) Close() error {
	e.gate.mu.Lock()
	for i, other := range e.gate.open {
		if other == e {
			e.gate.open = append(e.gate.open[:i], e.gate.open[i+1:]...)
			break
		}
	}
	e.gate.mu.Unlock()
	return e.Conn.Close()
}

// enteredKey is the context key of the connection of a request.
type enteredKey struct{}

// withEntered is http.Server's ConnContext.
func withEntered(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, enteredKey{}, c)
}

// remember keeps the connections of calls, which reach this handler with a login only.
func remember(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if e, ok := r.Context().Value(enteredKey{}).(*entered); ok && strings.HasPrefix(r.URL.Path, "/api/") {
			e.gate.mu.Lock()
			e.known = true
			e.gate.mu.Unlock()
		}
		next.ServeHTTP(w, r)
	})
}
