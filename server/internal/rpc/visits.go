package rpc

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/berthd/berth/api/access"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/logs"
)

// visits logs the begin and end of agents. An agent is a user that acts for an owner of pods. It
// begins with its first call that may change something, and ends when its last connection ends.
type visits struct {
	log   *slog.Logger
	lines *lines

	mu   sync.Mutex
	here map[agentUser]int // guarded by mu; connections
}

// agentUser is a user and the owner that it acts for.
type agentUser struct {
	owner string
	uid   uint32
}

func newVisits(log *slog.Logger, l *lines) *visits {
	return &visits{log: log, lines: l, here: map[agentUser]int{}}
}

// visit is a connection with the agents that have called on it.
type visit struct {
	visits *visits
	who    Peer

	mu     sync.Mutex
	ended  bool
	owners []string // guarded by mu
}

// maxOwners limits the owners that are distinguished in the calls of one connection.
const maxOwners = 16

// came notes a call for an owner.
func (v *visit) came(ctx context.Context, owner string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, o := range v.owners {
		if o == owner {
			return
		}
	}
	if v.ended || len(v.owners) == maxOwners {
		return
	}
	v.owners = append(v.owners, owner)
	if a := (agentUser{owner, v.who.UID}); v.visits.count(a, 1) == 1 {
		v.visits.line(ctx, "agent connected", logs.Came, a, v.who)
	}
}

// end notes that the connection is closed.
func (v *visit) end() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.ended {
		return
	}
	v.ended = true
	for _, owner := range v.owners {
		if a := (agentUser{owner, v.who.UID}); v.visits.count(a, -1) == 0 {
			v.visits.line(context.Background(), "agent has gone", logs.Gone, a, v.who)
		}
	}
}

// count changes the number of an agent's connections.
func (s *visits) count(a agentUser, by int) (now int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.here[a] += by
	if now = s.here[a]; now == 0 {
		delete(s.here, a)
	}
	return now
}

// line logs, unless there are too many lines.
func (s *visits) line(ctx context.Context, text string, keys func(kind string, more ...any) []any, a agentUser, who Peer) {
	omitted, ok := s.lines.next()
	if !ok {
		return
	}
	fields := keys(logs.Agent, "owner", a.owner, "peer", who.String())
	if omitted > 0 {
		fields = append(fields, "omitted", omitted)
	}
	s.log.InfoContext(ctx, text, fields...)
}

// visitor is how the peer of a connection was identified, with its visit.
type visitor struct {
	credentials.AuthInfo
	visit *visit
}

// visitConn ends the visit with the connection.
type visitConn struct {
	net.Conn
	visit *visit
}

// Close implements net.Conn.
func (c visitConn) Close() error {
	c.visit.end()
	return c.Conn.Close()
}

// visitCredentials give each connection a visit.
type visitCredentials struct {
	credentials.TransportCredentials
	visits *visits
}

// ServerHandshake implements credentials.TransportCredentials.
func (cc visitCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := cc.TransportCredentials.ServerHandshake(c)
	if err != nil {
		return nil, nil, err
	}
	who, ok := peerIn(info)
	if !ok {
		return c, info, nil
	}
	v := &visit{visits: cc.visits, who: who}
	return visitConn{c, v}, visitor{info, v}, nil
}

// Clone implements credentials.TransportCredentials.
func (cc visitCredentials) Clone() credentials.TransportCredentials { return cc }

// noteAgent notes a call that was authorized.
func noteAgent(ctx context.Context, fullMethod string, req any) {
	r, ok := req.(owned)
	if !ok {
		return
	}
	if role, _ := access.RoleOf(fullMethod); role != access.Agent {
		return
	}
	if d, ok := req.(requirer); ok && d.GetDryRun() {
		return
	}
	// An admitted pod has its owner; the request does not repeat it.
	if a, ok := req.(*allocationv1.AllocateRequest); ok && a.GetPod() == nil {
		return
	}
	if p, ok := peer.FromContext(ctx); ok {
		if v, ok := p.AuthInfo.(visitor); ok {
			v.visit.came(ctx, cmp.Or(r.GetOwner(), ledger.DefaultOwner))
		}
	}
}
