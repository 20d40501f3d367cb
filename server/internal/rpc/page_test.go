package rpc

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc/peer"

	"github.com/berthd/berth/api/access"
	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
)

// TestPagePeer: connections of the page are the page's, and others of berthd's own user are not; the page only reads,
// and tries policies.
func TestPagePeer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	page, other := NewPage(), NewPage()
	shake := func(dial func(context.Context, string) (net.Conn, error)) Peer {
		t.Helper()
		near, err := dial(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer near.Close()
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, info, err := pageCredentials{PeerCredentials(), page}.ServerHandshake(c)
		if err != nil {
			t.Fatal(err)
		}
		return info.(Peer)
	}
	who := shake(page.Dial)
	if !who.Page || who.UID != pageUID || who.Name != "page" || who.String() != "page" {
		t.Errorf("the page is %+v", who)
	}
	if p := shake(other.Dial); p.Page {
		t.Errorf("another address is the page: %+v", p)
	}
	plain := func(ctx context.Context, path string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}
	if p := shake(plain); p.Page {
		t.Errorf("a connection without an address is the page: %+v", p)
	}

	nobody := uint32(pageUID)
	a := NewAccess(nobody, []access.Grant{{UID: &nobody, Roles: access.Roles()}}, nil)
	ctx := peer.NewContext(t.Context(), &peer.Peer{AuthInfo: who})
	const get, admit = "/berth.topology.v1.TopologyService/GetPolicy", "/berth.admission.v1.AdmissionService/Admit"
	set, defragment := pageMethods[0], pageMethods[1]
	for _, tt := range []struct {
		method string
		req    any
		want   bool
	}{
		{get, nil, true}, {set, &topologyv1.SetPolicyRequest{DryRun: true}, true}, {set, &topologyv1.SetPolicyRequest{}, false},
		{defragment, &admissionv1.DefragmentRequest{DryRun: true}, true}, {defragment, &admissionv1.DefragmentRequest{}, false},
		{defragment, nil, false}, {admit, nil, false},
		{"/berth.inspect.v1.InspectService/Import", &topologyv1.SetPolicyRequest{DryRun: true}, false},
	} {
		if err := a.authorize(ctx, tt.method, tt.req); (err == nil) != tt.want {
			t.Errorf("%s %v: %v", tt.method, tt.req, err)
		}
	}
	if a.trusts(who) || a.mayAuthorize(ctx, set) != nil || a.mayAuthorize(ctx, "/berth.node.v1.NodeService/Reload") == nil {
		t.Error("the page may make other calls than those that read and try")
	}
	c := newLimiter(Config{Access: a})
	if u, _, counted := c.of(who); !counted || u.kind != ofPage {
		t.Errorf("the page counts as %+v, %t", u, counted)
	}
}
