package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/server/internal/rpc"
)

// pageConn connects the page to berthd's own socket. It connects with the page's first call, and
// what a caller may do is decided before (allowPage).
func (a *App) pageConn() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///berthd",
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", a.Config.Listen)
		}))
}

// pageHandler serves the page for a browser.
func (a *App) pageHandler(conn grpc.ClientConnInterface) http.Handler {
	return a.allowPage(page.New(page.Options{Conn: conn, About: "berth", ReadPod: page.ReadPod, Turns: runtime.GOMAXPROCS(0) / 4}))
}

// peerKey is the context key of the rpc.Peer of a request's connection, or of the error of
// reading it. On a TCP port there is no value.
type peerKey struct{}

// withPeer puts the peer of a connection to the HTTP socket into the context of its requests.
func (a *App) withPeer(ctx context.Context, c net.Conn) context.Context {
	if _, ok := a.Config.HTTPSocket(); !ok {
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
func (a *App) allowPage(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		need := page.RoleOf(r)
		refusal := ""
		switch who := r.Context().Value(peerKey{}).(type) {
		case rpc.Peer:
			if !a.access.Allows(who, need) {
				refusal = fmt.Sprintf("the role %s is missing for uid %d: see access in the configuration", need, who.UID)
			}
		case error:
			refusal = "the user of the connection is unknown"
		default:
			switch from, err := netip.ParseAddrPort(r.RemoteAddr); {
			case !a.Config.HTTPPage:
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
