package allocation

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/rpc"
)

// After a start of berthd all readers come at once, and each of them gets all pods. So the
// initial state of a view is encoded once, in parts, for all streams that want the same events.
// A part is encoded when the first stream needs it. It stays while a stream sends it, and after
// that while there is room for it and a stream that has not come to its end. The streams of a
// user have a limited room. A stream that needs a part for which there is none waits until
// another stream has sent its part.
const (
	// partPods is the number of pods of a part.
	partPods = 32
	// partBytes is what a part is assumed to take before it is encoded.
	partBytes = 64 << 10
	// rootRoom and userRoom are the bytes of parts of root's streams and of those of each other
	// user, who therefore delays nobody else by reading nothing.
	rootRoom, userRoom = 32 << 20, 8 << 20
)

// starts has the initial states that streams read.
type starts struct {
	root, user int // how much room root's streams and those of another user have
	mu         sync.Mutex
	users      map[string]*room // guarded by mu; of users with streams that read one
}

// enter returns the room of a user while a stream reads its initial state.
func (s *starts) enter(user string) (r *room, leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r = s.users[user]
	if r == nil {
		r = &room{limit: s.user, states: map[stateKey]*state{}}
		if user == "" {
			r.limit = s.root
		}
		if s.users == nil {
			s.users = map[string]*room{}
		}
		s.users[user] = r
	}
	r.streams++
	return r, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r.streams--; r.streams == 0 {
			delete(s.users, user)
		}
	}
}

// room is what the streams of one user share.
type room struct {
	streams int // guarded by starts.mu
	limit   int

	mu      sync.Mutex
	states  map[stateKey]*state // guarded by mu
	held    int                 // guarded by mu; bytes of all parts, at most limit, but for a part that takes more than partBytes
	idle    []*part             // guarded by mu; parts that no stream sends, the oldest first
	waiting []*waiter           // guarded by mu; in the order of their coming. None waits for a part that exists
}

// waiter is a stream that waits for a part.
type waiter struct {
	state *state
	index int
	got   chan struct{} // closed when part is set
	part  *part         // guarded by room.mu; pinned for the stream
}

// stateKey says which streams get the same events.
type stateKey struct {
	view   *ledger.View
	snap   *device.Snapshot
	filter string
}

// state is the initial state of a view.
type state struct {
	key     stateKey
	readers int // guarded by room.mu
	pods    []*ledger.Pod
	rest    []event       // after the pods
	parts   map[int]*part // guarded by room.mu
}

// count returns the number of parts. The last one has the rest, and always a message.
func (s *state) count() int { return max(1, (len(s.pods)+partPods-1)/partPods) }

// part is a part of a state.
type part struct {
	state *state
	index int
	pins  int // guarded by room.mu; streams that send it
	bytes int // guarded by room.mu; what it takes of the room

	once     sync.Once
	made     atomic.Bool
	messages []*rpc.Shared
	err      error
}

// open returns the state of a key, which collect fills if no other stream reads it, until leave.
func (r *room) open(key stateKey, collect func() *state) (s *state, leave func()) {
	r.mu.Lock()
	s = r.states[key]
	if s == nil {
		r.mu.Unlock()
		made := collect()
		made.key, made.parts = key, map[int]*part{}
		r.mu.Lock()
		if s = r.states[key]; s == nil {
			s, r.states[key] = made, made
		}
	}
	s.readers++
	r.mu.Unlock()
	return s, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if s.readers--; s.readers == 0 {
			delete(r.states, key)
			for _, p := range s.parts { // no stream sends one
				r.forget(p)
			}
			r.serve()
		}
	}
}

// pin returns a part, which stays until unpin. It waits if there is no room for it.
func (r *room) pin(ctx context.Context, s *state, index int) (*part, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &waiter{state: s, index: index, got: make(chan struct{})}
	r.waiting = append(r.waiting, w)
	r.serve()
	if w.part == nil {
		r.mu.Unlock()
		select {
		case <-w.got:
		case <-ctx.Done():
		}
		r.mu.Lock()
	}
	if w.part == nil {
		r.waiting = slices.DeleteFunc(r.waiting, func(other *waiter) bool { return other == w })
		return nil, ctx.Err()
	}
	return w.part, nil
}

// serve pins the parts that streams wait for: those that exist, and new ones while there is room. It is called after
// each change of the room. mu must be held.
func (r *room) serve() {
	full := false
	r.waiting = slices.DeleteFunc(r.waiting, func(w *waiter) bool {
		p := w.state.parts[w.index]
		if p == nil && !full {
			if full = !r.fits(); !full {
				p = &part{state: w.state, index: w.index, bytes: partBytes}
				w.state.parts[w.index] = p
				r.held += p.bytes
			}
		}
		if p == nil {
			return false
		}
		if p.pins++; p.pins == 1 {
			r.idle = slices.DeleteFunc(r.idle, func(i *part) bool { return i == p })
		}
		w.part = p
		close(w.got)
		return true
	})
}

// fits makes room for a part, and reports whether there is enough. mu must be held.
func (r *room) fits() bool {
	for r.held+partBytes > r.limit && len(r.idle) > 0 {
		r.forget(r.idle[0])
	}
	return r.held+partBytes <= r.limit || r.held == 0
}

// forget releases a part that no stream sends. mu must be held.
func (r *room) forget(p *part) {
	r.idle = slices.DeleteFunc(r.idle, func(i *part) bool { return i == p })
	delete(p.state.parts, p.index)
	r.held -= p.bytes
}

// unpin ends the use of a part.
func (r *room) unpin(p *part) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if p.pins--; p.pins > 0 {
		return
	}
	if r.idle = append(r.idle, p); p.err != nil {
		r.forget(p)
	}
	r.serve()
}

// settle replaces the assumed size of a part.
func (r *room) settle(p *part, bytes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held += bytes - p.bytes
	p.bytes = bytes
	r.serve()
}
