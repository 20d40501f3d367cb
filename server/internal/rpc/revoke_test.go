package rpc

import (
	"context"
	"log/slog"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/api/access"
)

// endless is a stream whose handler waits for its context.
type endless struct {
	grpc.ServerStream
	ctx context.Context
}

func (s endless) Context() context.Context { return s.ctx }

// Calls that run while a role is taken away end, with a reason: those of users without the role, and no others.
func TestCallsEndWithTheRole(t *testing.T) {
	t.Parallel()
	const watch, admit = "/berth.allocation.v1.AllocationService/Watch", "/berth.admission.v1.AdmissionService/Admit"
	mine, yours, group := uint32(7), uint32(8), uint32(70)
	grants := func(roles ...access.Role) []access.Grant {
		all := []access.Grant{{UID: &yours, Roles: []access.Role{access.Agent}}}
		if len(roles) > 0 {
			all = append(all, access.Grant{UID: &mine, Roles: roles}, access.Grant{GID: &group, Roles: roles})
		}
		return all
	}
	a := NewAccess(1, grants(access.Agent), nil)
	cfg := Config{Access: a, Log: slog.New(slog.DiscardHandler)}
	type call struct {
		name  string
		who   Peer
		until access.Role // the role that the call needs; empty: it goes on
		unary bool
	}
	calls := []call{
		{"stream of the user", Peer{UID: mine}, access.Read, false},
		{"stream of the group", Peer{UID: 9, Groups: []uint32{group}}, access.Read, false},
		{"call of the user", Peer{UID: mine}, access.Agent, true},
		{"stream of another user", Peer{UID: yours}, "", false},
		{"call of another user", Peer{UID: yours}, "", true},
		{"stream of root", Peer{}, "", false},
	}
	ended, running := map[string]chan error{}, map[string]chan struct{}{}
	finish := make(chan struct{})
	for _, c := range calls {
		ended[c.name], running[c.name] = make(chan error, 1), make(chan struct{})
		ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: c.who})
		wait := func(ctx context.Context) error {
			close(running[c.name])
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-finish:
				return nil
			}
		}
		go func() {
			if c.unary {
				_, err := cfg.gateUnary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: admit},
					func(ctx context.Context, _ any) (any, error) { return nil, wait(ctx) })
				ended[c.name] <- err
				return
			}
			ended[c.name] <- cfg.gateStream(nil, endless{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: watch},
				func(_ any, ss grpc.ServerStream) error { return wait(ss.Context()) })
		}()
		<-running[c.name]
	}
	// A change that leaves the role read ends calls that need the role agent.
	for _, change := range []struct {
		left []access.Role
		ends access.Role
	}{{[]access.Role{access.Read}, access.Agent}, {nil, access.Read}} {
		a.Change(grants(change.left...))
		for _, c := range calls {
			if c.until != change.ends {
				continue
			}
			if err := <-ended[c.name]; status.Code(err) != codes.PermissionDenied {
				t.Errorf("%s: %v", c.name, err)
			}
		}
	}
	close(finish)
	for _, c := range calls {
		if c.until != "" {
			continue
		}
		if err := <-ended[c.name]; err != nil && !c.unary {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if n := len(a.running.calls); n != 0 {
		t.Errorf("%d calls are still in the list", n)
	}
}

// The group by which a user has a role is known, unless the user has the role by itself.
func TestGroupFor(t *testing.T) {
	t.Parallel()
	uid, gid, other := uint32(7), uint32(70), uint32(71)
	a := NewAccess(1, []access.Grant{
		{GID: &other, Roles: []access.Role{access.Agent}},
		{GID: &gid, Roles: []access.Role{access.Provider}},
		{UID: &uid, Roles: []access.Role{access.Provider}},
	}, nil)
	for _, row := range []struct {
		who  Peer
		want *uint32
	}{
		{Peer{UID: uid, Groups: []uint32{gid, other}}, nil},
		{Peer{UID: 8, Groups: []uint32{other, gid}}, &gid},
		{Peer{UID: 8, GID: gid}, &gid},
		{Peer{UID: 8, GID: other}, nil},
		{Peer{GID: gid}, nil},
	} {
		got := a.GroupFor(row.who, access.Provider)
		if (got == nil) != (row.want == nil) || got != nil && *got != *row.want {
			t.Errorf("%v: group %v, want %v", row.who, got, row.want)
		}
	}
}
