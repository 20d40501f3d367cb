package rpc

import (
	"context"
	"crypto/rand"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc/credentials"
)

// pageUID is the user that calls of the page have in the log and in the history: nobody.
const pageUID = 65534

// pageMethods are the calls of the page that need more than the role read. They are dry runs, and only for a user
// with the role admin; the HTTP server has checked that.
var pageMethods = []string{"/berth.topology.v1.TopologyService/SetPolicy", "/berth.admission.v1.AdmissionService/Defragment"}

// triesOnPage reports whether a call is one of them, so that its role depends on its request.
func triesOnPage(ctx context.Context, fullMethod string) bool {
	who, ok := PeerOf(ctx)
	return ok && who.Page && slices.Contains(pageMethods, fullMethod)
}

// Page marks berthd's own connections for the page. Whoever sends requests to the page does not have the rights of
// berthd's user: all of them count as one user without privileges, with the role read.
type Page struct {
	prefix string
	opened atomic.Uint64
}

// NewPage returns a Page. The server that has it in its Config recognizes its connections.
func NewPage() *Page { return &Page{prefix: "@berth-page-" + rand.Text() + "-"} }

// Dial connects to a socket. The connection's own address, which only this process knows before, marks it.
func (p *Page) Dial(ctx context.Context, path string) (net.Conn, error) {
	name := p.prefix + strconv.FormatUint(p.opened.Add(1), 10)
	dialer := net.Dialer{LocalAddr: &net.UnixAddr{Net: "unix", Name: name}}
	return dialer.DialContext(ctx, "unix", path)
}

// made reports whether a connection is one of Dial.
func (p *Page) made(c net.Conn, who Peer) bool {
	return p != nil && who.UID == uint32(max(os.Geteuid(), 0)) && strings.HasPrefix(c.RemoteAddr().String(), p.prefix)
}

// pageCredentials turn the peer of the page's connections into the page.
type pageCredentials struct {
	credentials.TransportCredentials
	page *Page
}

// ServerHandshake implements credentials.TransportCredentials.
func (cc pageCredentials) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secure, info, err := cc.TransportCredentials.ServerHandshake(c)
	if who, ok := info.(Peer); ok && err == nil && cc.page.made(c, who) {
		info = Peer{UID: pageUID, GID: pageUID, PID: who.PID, Name: "page", Page: true}
	}
	return secure, info, err
}

// Clone implements credentials.TransportCredentials.
func (cc pageCredentials) Clone() credentials.TransportCredentials { return cc }
