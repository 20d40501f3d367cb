package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/berthd/berth/api/bounded"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/hosts"
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/server/internal/readiness"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
	"github.com/berthd/berth/server/internal/system"
	"github.com/berthd/berth/server/internal/task"
)

// httpConnections is how many connections to metrics and health there are at once.
const httpConnections = 64

// web serves metrics, health and the page over HTTP.
type web struct {
	config  config.Config
	log     *slog.Logger
	metrics system.Metrics
	health  *healthServer
	monitor *readiness.Monitor
	access  *rpc.Access
	page    *rpc.Page
	again   time.Duration // the pause between two tries of the address
}

// handler serves metrics, health and the page.
func (s *web) handler(conn grpc.ClientConnInterface, login *page.Login) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics.Handler(s.config.KubeletMetrics))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.ready)
	mux.Handle("/", s.pageHandler(conn, login))
	return mux
}

// serve adds the server for metrics, health and the page, if one is configured. end closes its
// connection to berthd itself.
func (s *web) serve(ctx context.Context, g *task.Group) (end func() error, err error) {
	if s.config.HTTP == "" {
		return func() error { return nil }, nil
	}
	l, err := s.listen()
	if _, isSocket := s.config.HTTPSocket(); !isSocket && mayComeFree(err) {
		s.log.WarnContext(ctx, "metrics and health are not served yet: another program has the address, or the machine does not have it; "+
			"berthd tries it again", "http", s.config.HTTP, "every", s.again.String(), "error", err)
	} else if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.config.HTTP, err)
	}
	conn, err := s.pageConn()
	if err != nil {
		if l != nil {
			err = errors.Join(err, l.Close())
		}
		return nil, err
	}
	var login *page.Login
	if _, ok := s.config.HTTPSocket(); ok {
		login = page.NewSharedLogin()
		if err := s.writeLogin(login); err != nil {
			return nil, errors.Join(fmt.Errorf("write the page's link next to the socket of http: %w", err), l.Close(), conn.Close())
		}
	}
	serving, endStreams := context.WithCancel(context.WithoutCancel(ctx))
	server := &http.Server{
		Handler: hosts.Only(s.config.HTTP, s.handler(conn, login)), MaxHeaderBytes: 64 << 10,
		ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		BaseContext: func(net.Listener) context.Context { return serving }, ConnContext: s.withPeer,
	}
	g.Go("http", func(ctx context.Context) error {
		for ; l == nil; l, _ = s.listen() {
			select {
			case <-time.After(s.again):
			case <-ctx.Done():
				return nil
			}
		}
		s.log.InfoContext(ctx, "metrics and health over HTTP", "address", l.Addr().String())
		if err := bounded.New(rpc.LeaveDescriptors(l), httpConnections).Serve(server); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.OnStop("http", func(ctx context.Context) error { endStreams(); return server.Shutdown(ctx) })
	return func() error { endStreams(); return conn.Close() }, nil
}

// mayComeFree reports whether an address may be free later. Every user of the machine can take a port, and the address of a node may come
// after berthd. That must not end berthd.
func mayComeFree(err error) bool {
	return errors.Is(err, syscall.EADDRINUSE) || errors.Is(err, syscall.EADDRNOTAVAIL)
}

// listen listens on an address or on a socket.
func (s *web) listen() (net.Listener, error) {
	path, ok := s.config.HTTPSocket()
	if !ok {
		return net.Listen("tcp", s.config.HTTP)
	}
	mode, err := config.Mode(s.config.HTTPMode, 0o660)
	if err != nil {
		return nil, err
	}
	return socket.Listen(path, socket.Options{DirMode: 0o755, Mode: mode, Group: s.config.ListenGroup})
}

// ready answers whether berthd serves, as the health service does, and why it does not.
func (s *web) ready(w http.ResponseWriter, r *http.Request) {
	resp, err := s.health.Check(r.Context(), &healthpb.HealthCheckRequest{})
	whole, some := s.monitor.Lines()
	if err != nil || resp.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = fmt.Fprintln(w, "not ready")
		if len(whole) == 0 {
			_, _ = fmt.Fprintln(w, "berthd starts or ends")
		}
	} else {
		_, _ = fmt.Fprintln(w, "ok")
	}
	for _, line := range append(whole, some...) {
		_, _ = fmt.Fprintln(w, line)
	}
}

// pageConn connects the page to berthd's own socket. It connects with the page's first call. What a
// caller may do is decided before (allowPage), and the limits of users hold for all of them together.
func (s *web) pageConn() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///berthd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return s.page.Dial(ctx, s.config.Listen)
		}))
}

// pageHandler serves the page for a browser. On a socket there is a login: with a socket that ssh forwards, the kernel
// reports the user of ssh for everybody who can connect to the near end.
func (s *web) pageHandler(conn grpc.ClientConnInterface, login *page.Login) http.Handler {
	served := page.New(page.Options{Conn: conn, About: "berth", Turns: runtime.GOMAXPROCS(0) / 4})
	if login != nil {
		served = login.Only(userOf, served)
	}
	return s.allowPage(served)
}

// userOf is the user of a request's connection.
func userOf(r *http.Request) string {
	if who, ok := r.Context().Value(peerKey{}).(rpc.Peer); ok {
		return strconv.FormatUint(uint64(who.UID), 10)
	}
	return ""
}

// loginSuffix is the end of the name of the file next to the socket that has the page's link.
const loginSuffix = ".login"

// writeLogin writes the link of the page next to the socket of the page, with the socket's mode and group: who can
// open the socket can read it, and somebody at the near end of a forwarded socket cannot.
func (s *web) writeLogin(login *page.Login) error {
	path, ok := s.config.HTTPSocket()
	if !ok || login == nil {
		return nil
	}
	mode, err := config.Mode(s.config.HTTPMode, 0o660)
	if err != nil {
		return err
	}
	path += loginSuffix
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, "http://127.0.0.1:8087"+login.Path())
	if err == nil && s.config.ListenGroup != "" {
		var gid int
		if gid, err = socket.Group(s.config.ListenGroup); err == nil {
			err = f.Chown(-1, gid)
		}
	}
	if err == nil {
		err = f.Chmod(mode & 0o444) // last: until then only berthd reads it
	}
	return errors.Join(err, f.Close())
}

// peerKey is the context key of the rpc.Peer of a request's connection, or of the error of
// reading it. On a TCP port there is no value.
type peerKey struct{}

// withPeer puts the peer of a connection to the HTTP socket into the context of its requests.
func (s *web) withPeer(ctx context.Context, c net.Conn) context.Context {
	if _, ok := s.config.HTTPSocket(); !ok {
		return ctx
	}
	who, err := rpc.PeerOfConn(c)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, err)
	}
	return context.WithValue(ctx, peerKey{}, who)
}

// allowPage checks each caller's roles. The kernel does not report the user of a TCP connection.
// On a TCP port httpPage therefore allows or refuses all users of this machine, and admin is
// never granted.
func (s *web) allowPage(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need := page.RoleOf(r)
		refusal := ""
		switch who := r.Context().Value(peerKey{}).(type) {
		case rpc.Peer:
			if !s.access.Allows(who, need) {
				refusal = fmt.Sprintf("the role %s is missing for uid %d: see access in the configuration", need, who.UID)
			}
			ctx, end := s.access.While(r.Context(), who, need)
			defer end()
			r = r.WithContext(ctx)
		case error:
			refusal = "the user of the connection is unknown"
		default:
			switch from, err := netip.ParseAddrPort(r.RemoteAddr); {
			case !s.config.HTTPPage:
				refusal = "the page is off on this address, because every user of this machine can connect: use berthctl web, or a unix socket for http, or set httpPage: true"
			case err != nil || !from.Addr().IsLoopback():
				refusal = "the page is only for this machine"
			case need != page.Reader:
				refusal = fmt.Sprintf("the role %s cannot be had on an address: use berthctl web, or a unix socket for http", need)
			}
		}
		if refusal != "" {
			http.Error(w, refusal, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}
