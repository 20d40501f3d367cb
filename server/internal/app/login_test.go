package app

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/page"
	"github.com/berthd/berth/server/internal/rpc"
)

// noConn is a connection that fails.
type noConn struct{}

func (noConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return os.ErrClosed
}
func (noConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, os.ErrClosed
}

// TestLoginOnSocket: whoever reaches the page through a socket has to log in, also with roles: with a socket that ssh
// forwards, everybody at its near end has the user of ssh. The link is readable for those who can open the socket.
func TestLoginOnSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "http.sock")
	a := &web{config: config.Config{HTTP: "unix://" + path, HTTPMode: "0660"}, access: rpc.NewAccess(selfUID(), nil, nil)}
	login := page.NewSharedLogin()
	for range 2 { // the file of an earlier process is replaced
		if err := a.writeLogin(login); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path + loginSuffix)
	info, serr := os.Stat(path + loginSuffix)
	if err != nil || serr != nil || info.Mode().Perm() != 0o440 || strings.TrimSpace(string(text)) != "http://127.0.0.1:8087"+login.Path() {
		t.Fatalf("%q, %v, %v", text, info.Mode(), err)
	}
	mux := http.NewServeMux() // as httpHandler has it, without metrics
	mux.Handle("/", a.pageHandler(noConn{}, login))
	get := func(path, session string) int {
		r := httptest.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, rpc.Peer{UID: selfUID()}), http.MethodGet,
			"http://127.0.0.1"+path, nil)
		r.Header.Set("X-Berth-Session", session)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Code
	}
	for path, want := range map[string]int{"/api/v1/pods": http.StatusUnauthorized, "/api/v1/events": http.StatusUnauthorized,
		"/api/v1/about": http.StatusUnauthorized, "/": http.StatusOK} {
		if got := get(path, "wrong"); got != want {
			t.Errorf("%s without a login: %d, want %d", path, got, want)
		}
	}
}
