package rpc

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/api/access"
)

// TestChange: grants and limits that change hold for calls that begin later, also in the copies that the parts of a
// server have.
func TestChange(t *testing.T) {
	t.Parallel()
	uid := uint32(1000)
	peer := Peer{UID: uid, GID: 7}
	a := NewAccess(0, []access.Grant{{UID: &uid, Roles: []access.Role{access.Read}}})
	s := NewServer(Config{Access: a, Bounds: Bounds{Connections: 3}})
	defer s.Stop()
	c := s.reading.limiter
	has := func(connections, calls int, roles ...access.Role) {
		t.Helper()
		u, b, counted := c.of(peer)
		if len(roles) == 0 {
			if u.kind != withoutRole {
				t.Errorf("a user without roles counts as %+v", u)
			}
			return
		}
		if !counted || b.Connections != connections || b.Calls != calls {
			t.Errorf("%+v, counted %t, want %d connections and %d calls", b, counted, connections, calls)
		}
		for _, r := range []access.Role{access.Read, access.Admin} {
			if got := a.Allows(peer, r); got != slices.Contains(roles, r) {
				t.Errorf("role %s: %t", r, got)
			}
		}
	}
	has(3, defaultCalls, access.Read)
	s.SetLimits(Limits{Connections: 5, Calls: 6, MaxElements: 7, Ceiling: time.Minute})
	has(5, 6, access.Read)
	a.Change([]access.Grant{{UID: &uid, Roles: []access.Role{access.Admin}}})
	has(5, 6, access.Admin)
	a.Change(nil)
	has(0, 0)
	s.SetLimits(Limits{})
	a.Change([]access.Grant{{UID: &uid, Roles: []access.Role{access.Admin}}})
	has(defaultConnections, defaultCalls, access.Admin)

	ctx, cancel := s.reading.limited(context.Background())
	if _, ok := ctx.Deadline(); ok {
		t.Error("without a ceiling a call has a deadline")
	}
	cancel()
	s.SetLimits(Limits{Ceiling: time.Minute})
	ctx, cancel = s.reading.limited(context.Background())
	if _, ok := ctx.Deadline(); !ok {
		t.Error("with a ceiling a call has no deadline")
	}
	cancel()
}
