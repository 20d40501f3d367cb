package app

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthd/berth/api/access"
	"github.com/berthd/berth/api/bounded"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/server/internal/rpc"
	"github.com/berthd/berth/server/internal/socket"
)

// TestAllowPage: a socket's users have their roles; an address gives the role read at most, and
// that only where configured and only to this machine.
func TestAllowPage(t *testing.T) {
	t.Parallel()
	reader, admin := uint32(1001), uint32(1002)
	grants := []access.Grant{{UID: &reader, Roles: []access.Role{access.Read}},
		{UID: &admin, Roles: []access.Role{access.Admin, access.Read}}}
	const read, change, move = "/api/v1/pods", "/api/v1/trials/policy", "/api/v1/trials/defrag"
	for _, tt := range []struct {
		name   string
		peer   any
		page   bool
		remote string
		path   string
		want   string
	}{
		{"root", rpc.Peer{UID: 0}, false, "", change, ""},
		{"a reader reads", rpc.Peer{UID: reader}, false, "", read, ""},
		{"a reader sees the page", rpc.Peer{UID: reader}, false, "", "/", ""},
		{"a reader tries a policy", rpc.Peer{UID: reader}, false, "", change, "the role admin is missing for uid 1001"},
		{"an admin tries a policy", rpc.Peer{UID: admin}, false, "", change, ""},
		{"a reader tries a defragmentation", rpc.Peer{UID: reader}, false, "", move, "the role admin is missing for uid 1001"},
		{"an admin tries a defragmentation", rpc.Peer{UID: admin}, false, "", move, ""},
		{"a reader tries a resize", rpc.Peer{UID: reader}, false, "", "/api/v1/trials/resize", ""},
		{"nobody", rpc.Peer{UID: 7}, true, "", read, "the role read is missing for uid 7"},
		{"nobody sees the page", rpc.Peer{UID: 7}, true, "", "/", "the role read is missing"},
		{"unknown", errors.New("no"), true, "127.0.0.1:5", read, "user of the connection is unknown"},
		{"an address", nil, false, "127.0.0.1:5", read, "set httpPage: true"},
		{"an address with the page", nil, true, "127.0.0.1:5", read, ""},
		{"an address with the page, version 6", nil, true, "[::1]:5", "/", ""},
		{"another machine", nil, true, "192.0.2.1:5", read, "only for this machine"},
		{"a policy on an address", nil, true, "127.0.0.1:5", change, "cannot be had on an address"},
	} {
		a := &web{config: config.Config{HTTPPage: tt.page}, access: rpc.NewAccess(7777, grants, nil)}
		h := a.allowPage(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") }))
		r := httptest.NewRequestWithContext(t.Context(), "POST", "http://localhost"+tt.path, nil)
		r.RemoteAddr = tt.remote
		if tt.peer != nil {
			r = r.WithContext(context.WithValue(r.Context(), peerKey{}, tt.peer))
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Body.String(); tt.want == "" && got != "served" || tt.want != "" &&
			(w.Code != http.StatusForbidden || !strings.Contains(got, tt.want)) {
			t.Errorf("%s: %d %q, want %q", tt.name, w.Code, got, tt.want)
		}
	}
}

// TestPagePeer: the kernel has the user who connected to the socket, also through its bound.
func TestPagePeer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	l, err := socket.Listen(path, socket.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &web{config: config.Config{HTTP: "unix://" + path}, access: rpc.NewAccess(selfUID(), nil, nil)}
	s := &http.Server{
		Handler:     a.allowPage(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "served") })),
		ConnContext: a.withPeer,
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(bounded.New(l, 2)) }()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	answer, err := (&http.Client{Transport: transport}).Get("http://localhost/")
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err != nil || string(body) != "served" {
		t.Errorf("%d %q, %v", answer.StatusCode, body, err)
	}
	transport.CloseIdleConnections()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
