package deviceplugin

import (
	"context"
	"slices"

	"google.golang.org/grpc/connectivity"

	"github.com/berthd/berth/server/internal/breaker"
)

// standby is the connection of a plugin that a newer one has pushed out, without
// a stream.
type standby struct {
	*session
	release context.CancelFunc // ends the watch of the connection
}

// maxStandbys is how many connections are kept for one resource: a plugin that registers
// under ever new names must not take ever more of berthd.
const maxStandbys = 8

// keep makes an ended session a standby if its connection is still open, and reports whether it
// did. The caller of keep and drop holds the lock.
func (s *Server) keep(p *session) bool {
	if s.running == nil || p.found || p.conn.GetState() != connectivity.Ready {
		return false
	}
	ctx, release := context.WithCancel(s.running)
	s.older = append(s.older, &standby{p, release})
	kept := 0
	for _, o := range slices.Backward(slices.Clone(s.older)) {
		if o.resource != p.resource {
			continue
		}
		if kept++; kept > maxStandbys {
			s.drop(func(q *session) bool { return q == o.session })
		}
	}
	s.streams.Go(func() {
		defer release()
		// A lost connection is not opened again: another plugin may listen at the same path.
		p.conn.WaitForStateChange(ctx, connectivity.Ready)
		s.mu.Lock()
		defer s.mu.Unlock()
		s.drop(func(q *session) bool { return q == p })
	})
	return true
}

// drop ends the standbys that match.
func (s *Server) drop(match func(*session) bool) {
	s.older = slices.DeleteFunc(s.older, func(o *standby) bool {
		if !match(o.session) {
			return false
		}
		o.release()
		_ = o.conn.Close()
		return true
	})
}

// takeOver makes the newest standby of a resource serve it, unless the resource is served.
func (s *Server) takeOver(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, o := range slices.Backward(s.older) {
		if s.sessions[resource] != nil {
			return
		}
		if o.resource != resource || o.conn.GetState() != connectivity.Ready {
			continue // its watch will drop it
		}
		o.release()
		s.older = slices.Delete(s.older, i, i+1)
		next := &session{
			server: s, resource: resource, path: o.path, conn: o.conn, client: o.client,
			options: o.options, ended: make(chan struct{}), breaker: breaker.New(s.Breaker), advice: breaker.New(s.Breaker),
		}
		s.Log.Info("an older device plugin takes over", "resource", resource, "endpoint", o.path)
		if err := s.begin(context.Background(), next); err != nil {
			s.Log.Warn("an older device plugin cannot take over", "resource", resource, "endpoint", o.path, "error", err)
		}
	}
}
