package rpc

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/berthd/berth/api/access"
	inspectv1 "github.com/berthd/berth/api/berth/inspect/v1"
)

// asPeer makes every connection one of the same peer.
type asPeer struct {
	credentials.TransportCredentials
	who Peer
}

func (a asPeer) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return c, a.who, nil
}

const root, reader, agent, unprivileged, other, admin = 0, 1, 2, 3, 4, 5

// bounded is a limiter in which uid 1 may read, uid 2 is an agent, uid 5 may do
// everything, and uid 9 is berthd's own.
func bounded(log io.Writer) *limiter {
	uid := func(uid uint32) *uint32 { return &uid }
	return newLimiter(Config{
		Access: &Access{Self: 9, Grants: []access.Grant{
			{UID: uid(reader), Roles: []access.Role{access.Read}},
			{UID: uid(agent), Roles: []access.Role{access.Agent}},
			{UID: uid(admin), Roles: []access.Role{access.Admin}},
		}},
		Bounds: Bounds{Connections: 3, Calls: 5}, MaxReceiveBytes: 1 << 20,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	})
}

// dial makes a connection of a user, with the context of its calls.
func (c *limiter) dial(t *testing.T, uid uint32) (net.Conn, context.Context, error) {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
	conn, info, err := limiterCredentials{asPeer{who: Peer{UID: uid}}, c}.Clone().ServerHandshake(near)
	if err != nil {
		return nil, nil, err
	}
	return conn, peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info}), nil
}

func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	c := bounded(io.Discard)
	var wait sync.WaitGroup
	for _, row := range []struct {
		uids []uint32
		want int
	}{
		{[]uint32{reader}, 3}, {[]uint32{agent}, 3}, {[]uint32{unprivileged, other}, unprivilegedConnections}, {[]uint32{root, 9}, 100},
	} {
		var mu sync.Mutex
		var open []net.Conn
		for i := range 100 {
			wait.Go(func() {
				conn, _, err := c.dial(t, row.uids[i%len(row.uids)])
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					open = append(open, conn)
				}
			})
		}
		wait.Wait()
		if len(open) != row.want {
			t.Errorf("users %v have %d connections, want %d", row.uids, len(open), row.want)
		}
		if _, _, err := c.dial(t, row.uids[0]); (err == nil) != (row.want == 100) {
			t.Errorf("one more for user %d: %v", row.uids[0], err)
		}
		for _, conn := range open {
			for range 2 { // gRPC may close twice
				_ = conn.Close()
			}
		}
		if conn, _, err := c.dial(t, row.uids[0]); err != nil {
			t.Errorf("user %d after all were closed: %v", row.uids[0], err)
		} else if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(c.users) != 0 {
		t.Errorf("left: %v", c.users)
	}
}

const list, admit = "/berth.allocation.v1.AllocationService/List", "/berth.admission.v1.AdmissionService/Admit"

// TestCallsAreBounded: by user, whatever connection they come on, and only those
// that are under way.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	c := bounded(io.Discard)
	_, first, err := c.dial(t, reader)
	if err != nil {
		t.Fatal(err)
	}
	_, second, err := c.dial(t, reader)
	if err != nil {
		t.Fatal(err)
	}
	var ends []func()
	call := func(ctx context.Context) error {
		ctx, end := context.WithCancel(ctx)
		ends = append(ends, end)
		_, err := c.tap(ctx, &tap.Info{FullMethodName: list})
		return err
	}
	for i := range 5 {
		if err := call([]context.Context{first, second}[i%2]); err != nil {
			t.Fatal(err)
		}
	}
	if err := call(second); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a call too many: %v", err)
	}
	_, trusted, err := c.dial(t, root)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if err := call(trusted); err != nil {
			t.Fatalf("root: %v", err)
		}
	}
	for _, end := range ends {
		end()
	}
	c.until(reader, 0)
	if err := call(first); err != nil {
		t.Errorf("after all have ended: %v", err)
	}
}

// until waits until a user has so many calls under way: contexts end by themselves, in
// goroutines of their own.
func (c *limiter) until(uid uint32, want int) {
	for {
		c.mu.Lock()
		l := c.users[user{id: uid}]
		done := l == nil && want == 0 || l != nil && l.calls == want
		c.mu.Unlock()
		if done {
			return
		}
		runtime.Gosched()
	}
}

// deaf is a service that does not notice the end of its context.
type deaf struct {
	inspectv1.UnimplementedInspectServiceServer
	entered, over chan struct{}
	release       chan struct{}
}

func (d deaf) Check(ctx context.Context, _ *inspectv1.CheckRequest) (*inspectv1.CheckResponse, error) {
	d.entered <- struct{}{}
	<-ctx.Done()
	d.over <- struct{}{}
	<-d.release
	return &inspectv1.CheckResponse{}, nil
}

func (d deaf) StreamDump(*inspectv1.StreamDumpRequest, grpc.ServerStreamingServer[inspectv1.StreamDumpResponse]) error {
	return nil
}

// TestCallsCountWhileTheyRun: a cancelled call counts for as long as
// its handler runs.
func TestCallsCountWhileTheyRun(t *testing.T) {
	t.Parallel()
	c := bounded(io.Discard)
	d := deaf{entered: make(chan struct{}), over: make(chan struct{}), release: make(chan struct{})}
	s := grpc.NewServer(c.options(asPeer{insecure.NewCredentials(), Peer{UID: admin}})...)
	inspectv1.RegisterInspectServiceServer(s, d)
	l := bufconn.Listen(1 << 16)
	go func() { _ = s.Serve(l) }()
	defer s.Stop()
	conn, err := grpc.NewClient("passthrough:", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := inspectv1.NewInspectServiceClient(conn)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	results := make(chan error, 5)
	call := func(ctx context.Context) error {
		go func() {
			_, err := client.Check(ctx, &inspectv1.CheckRequest{})
			results <- err
		}()
		select {
		case <-d.entered:
			return nil
		case err := <-results:
			return err
		}
	}
	for range 5 {
		if err := call(ctx); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	for range 5 {
		if err := <-results; status.Code(err) != codes.Canceled {
			t.Error(err)
		}
		<-d.over
	}
	if err := call(t.Context()); status.Code(err) != codes.ResourceExhausted {
		t.Fatalf("beside five handlers that run: %v", err)
	}
	close(d.release)
	c.until(admin, 0)

	// What never gets to a handler counts no longer than the call.
	if err := conn.Invoke(t.Context(), "/berth.inspect.v1.InspectService/Nothing", &inspectv1.CheckRequest{},
		&inspectv1.CheckResponse{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown method: %v", err)
	}
	c.until(admin, 0)
	ctx, cancel = context.WithCancel(t.Context())
	if _, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/berth.inspect.v1.InspectService/Check"); err != nil {
		t.Fatal(err)
	}
	c.until(admin, 1)
	cancel()
	c.until(admin, 0)
	// A stream that ends in order.
	stream, err := client.StreamDump(t.Context(), &inspectv1.StreamDumpRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	c.until(admin, 0)
}

// TestCallsThatAreOver do not begin.
func TestCallsThatAreOver(t *testing.T) {
	t.Parallel()
	c := bounded(io.Discard)
	_, ctx, err := c.dial(t, reader)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	if ctx, err = c.tap(ctx, &tap.Info{FullMethodName: list}); err != nil {
		t.Fatal(err)
	}
	cancel()
	c.until(reader, 0)
	_, err = c.beginUnary(ctx, nil, nil, func(context.Context, any) (any, error) {
		t.Error("it has begun")
		return nil, nil
	})
	if status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

// TestRolesBeforeMessages: what no message could make right is refused before there
// is one, in the same words as later.
func TestRolesBeforeMessages(t *testing.T) {
	t.Parallel()
	c := bounded(io.Discard)
	for _, row := range []struct {
		uid    uint32
		method string
		want   codes.Code
	}{
		{root, admit, codes.OK},
		{agent, admit, codes.OK},
		{agent, list, codes.OK}, // which includes read
		{agent, "/berth.inspect.v1.InspectService/Check", codes.PermissionDenied},
		{reader, list, codes.OK},
		{reader, admit, codes.OK}, // it may be a dry run
		{reader, "/berth.admission.v1.AdmissionService/RemovePod", codes.PermissionDenied},
		{unprivileged, list, codes.PermissionDenied},
		{unprivileged, admit, codes.PermissionDenied},
		{unprivileged, "/grpc.health.v1.Health/Check", codes.PermissionDenied},
		{unprivileged, "/who.knows/What", codes.OK}, // gRPC reports none
	} {
		conn, ctx, err := c.dial(t, row.uid)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.tap(ctx, &tap.Info{FullMethodName: row.method})
		if status.Code(err) != row.want {
			t.Errorf("uid %d calls %s: %v", row.uid, row.method, err)
		}
		later := Status(ctx, c.access.authorize(ctx, row.method, nil))
		if told := status.Convert(err).Message(); err != nil && row.method != admit && told != status.Convert(later).Message() {
			t.Errorf("uid %d calls %s: %v, and later %v", row.uid, row.method, err, later)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestTriable: the methods whose role depends on the message are those of agents
// that can be tried.
func TestTriable(t *testing.T) {
	t.Parallel()
	var want []string
	protoregistry.GlobalFiles.RangeFiles(func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				m := s.Methods().Get(j)
				name := "/" + string(s.FullName()) + "/" + string(m.Name())
				if role, ok := access.RoleOf(name); ok && role == access.Agent && m.Input().Fields().ByName("dry_run") != nil {
					want = append(want, name)
				}
			}
		}
		return true
	})
	slices.Sort(want)
	if !slices.Equal(triable, want) {
		t.Errorf("triable are %q, want %q", triable, want)
	}
}

// TestRefusalsEndAConnection: each costs memory until then.
func TestRefusalsEndAConnection(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	c := bounded(&log)
	near, far := net.Pipe()
	defer far.Close()
	_, info, err := limiterCredentials{asPeer{who: Peer{UID: unprivileged}}, c}.ServerHandshake(near)
	if err != nil {
		t.Fatal(err)
	}
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
	for range maxRefusals {
		if _, err := c.tap(ctx, &tap.Info{FullMethodName: list}); status.Code(err) != codes.PermissionDenied {
			t.Fatal(err)
		}
	}
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the connection is open: %v", err)
	}
	if n := strings.Count(log.String(), "refused call"); n == 0 || n == maxRefusals {
		t.Errorf("%d lines for %d refusals", n, maxRefusals)
	}
}

// TestGroupsCountTogether: those who have their roles by one group share what a user may have,
// whatever number and further groups they have; who has a role by the number does not.
func TestGroupsCountTogether(t *testing.T) {
	t.Parallel()
	const team, others = 50, 51
	id := func(n uint32) *uint32 { return &n }
	for _, row := range []struct {
		name string
		who  func(i uint32) Peer
		want int
	}{
		{"the first group", func(i uint32) Peer { return Peer{UID: 1000 + i, GID: team} }, 3},
		{"a further group", func(i uint32) Peer { return Peer{UID: 1000 + i, GID: 2000 + i, Groups: []uint32{3000 + i, team}} }, 3},
		{"two such groups", func(i uint32) Peer { return Peer{UID: 1000 + i, GID: others, Groups: []uint32{team}} }, 3},
		{"no such group", func(i uint32) Peer { return Peer{UID: 1000 + i, GID: 2000 + i} }, unprivilegedConnections},
		{"a role by the number", func(i uint32) Peer { return Peer{UID: reader, GID: team} }, 3},
	} {
		c := newLimiter(Config{
			Access: &Access{Self: 9, Grants: []access.Grant{
				{GID: id(team), Roles: []access.Role{access.Read}}, {GID: id(others), Roles: []access.Role{access.Agent}},
				{UID: id(reader), Roles: []access.Role{access.Read}},
			}},
			Bounds: Bounds{Connections: 3, Calls: 5}, MaxReceiveBytes: 1 << 20, Log: slog.New(slog.DiscardHandler),
		})
		open := 0
		for i := range uint32(40) {
			near, far := net.Pipe()
			t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
			conn, info, err := limiterCredentials{asPeer{who: row.who(i)}, c}.ServerHandshake(near)
			if err != nil {
				continue
			}
			open++
			t.Cleanup(func() { _ = conn.Close() })
			// So do their calls.
			ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: info})
			for range 5 {
				_, _ = c.tap(ctx, &tap.Info{FullMethodName: list})
			}
		}
		calls := 0
		for _, l := range c.users {
			calls += l.calls
		}
		if open != row.want || len(c.users) != 1 || calls > 5 {
			t.Errorf("%s: %d connections, want %d; %d calls of %d users, want at most 5 of one", row.name, open, row.want, calls,
				len(c.users))
		}
		// A user with a role by the number has room beside the group.
		if near, far := net.Pipe(); row.want == 3 && row.who(0).UID != reader {
			t.Cleanup(func() { _ = near.Close(); _ = far.Close() })
			if _, _, err := (limiterCredentials{asPeer{who: Peer{UID: reader, GID: team}}, c}).ServerHandshake(near); err != nil {
				t.Errorf("%s: beside it: %v", row.name, err)
			}
		}
	}
}
