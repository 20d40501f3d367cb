package rpc

import (
	"context"
	"log/slog"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/berthd/berth/api/access"
)

// TestChange: grants and limits that change hold for calls that begin later, also in the copies that the parts of a
// server have.
func TestChange(t *testing.T) {
	t.Parallel()
	uid := uint32(1000)
	peer := Peer{UID: uid, GID: 7}
	a := NewAccess(0, []access.Grant{{UID: &uid, Roles: []access.Role{access.Read}}}, nil)
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

// sent is a stream that counts its messages.
type sent struct {
	grpc.ServerStream
	ctx      context.Context
	messages *int
}

func (s sent) Context() context.Context { return s.ctx }
func (s sent) SendMsg(any) error        { *s.messages++; return nil }

// TestStreamsEndWithTheirGrant: a stream gets no further message when its user has lost the
// role that the stream needs.
func TestStreamsEndWithTheirGrant(t *testing.T) {
	t.Parallel()
	uid := uint32(1000)
	may := func(r access.Role) []access.Grant { return []access.Grant{{UID: &uid, Roles: []access.Role{r}}} }
	a := NewAccess(0, may(access.Read), nil)
	s := NewServer(Config{Access: a, Log: slog.New(slog.DiscardHandler)})
	defer s.Stop()
	const watch = "/berth.allocation.v1.AllocationService/Watch"
	ctx, cancel := context.WithCancel(called(uid))
	defer cancel()
	ctx, err := s.reading.limiter.tap(ctx, &tap.Info{FullMethodName: watch})
	if err != nil {
		t.Fatal(err)
	}
	messages := 0
	stream := readStream{sent{ctx: ctx, messages: &messages}, watch, s.reading}
	for _, row := range []struct {
		grants []access.Grant
		want   int
	}{{may(access.Read), 1}, {may(access.Agent), 2}, {may(access.Admin), 2}, {nil, 2}, {may(access.Provider), 3}} {
		a.Change(row.grants)
		before := messages
		err := stream.SendMsg(nil)
		if messages != row.want || (err == nil) != (messages > before) || err != nil && status.Code(err) != codes.PermissionDenied {
			t.Errorf("with %v: %d messages, %v", row.grants, messages, err)
		}
	}
}
