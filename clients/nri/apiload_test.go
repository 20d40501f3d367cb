package main

import (
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// TestConnectionsAreKept: calls of the API server use one connection, and a new one when its certificates are others.
func TestConnectionsAreKept(t *testing.T) {
	t.Parallel()
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			t.Error("the API server gets a header that is for package http")
		}
		_, _ = io.WriteString(w, "{}")
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.TLS = &tls.Config{}
	server.StartTLS()
	t.Cleanup(server.Close)
	dir := account(t, server)
	a := &apiServer{base: server.URL, accounts: dir, node: "n1", log: slog.New(slog.DiscardHandler), now: time.Now}
	calls := func() {
		t.Helper()
		for _, method := range []string{http.MethodPatch, http.MethodGet, http.MethodPost, http.MethodPatch} {
			if err := a.call(t.Context(), method, "/x", map[string]string{}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	calls()
	if got := opened.Load(); got != 1 {
		t.Errorf("4 calls have opened %d connections", got)
	}
	file := filepath.Join(dir, "ca.crt")
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, append(text, text...), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	calls()
	if got := opened.Load(); got != 2 {
		t.Errorf("8 calls with two authorities have opened %d connections", got)
	}
}

// TestWatchPause: watches that the API server refuses come later and later, and not before it wants them.
func TestWatchPause(t *testing.T) {
	t.Parallel()
	refused := func(after time.Duration) error { return &statusError{error: io.EOF, code: 429, after: after} }
	for _, row := range []struct {
		refusals int
		err      error
		want     time.Duration
	}{
		{0, endedWatch{io.EOF}, watchAgain}, {1, io.EOF, watchAgain}, {2, refused(0), 2 * watchAgain}, {3, io.EOF, 4 * watchAgain},
		{1000, io.EOF, watchMost},
		{1, refused(time.Minute), time.Minute}, {1, refused(time.Second), watchAgain}, {1000, refused(time.Minute), watchMost},
	} {
		if got := watchPause(row.refusals, row.err); got != row.want {
			t.Errorf("after %d refusals and %v: %s, want %s", row.refusals, row.err, got, row.want)
		}
	}
}

// TestRetryAfter: the API server says how long it wants no request.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"": 0, "3": 3 * time.Second, "-1": 0, "soon": 0, "99999999": maxRetryAfter,
		"99999999999999999999": 0} {
		server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", text)
			w.WriteHeader(http.StatusTooManyRequests)
		}))
		a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", set: "a/b", log: slog.New(slog.DiscardHandler),
			now: time.Now}
		err := a.watchOnce(t.Context())
		if got, least := watchPause(1, err), max(want, watchAgain); got != least {
			t.Errorf("Retry-After %q: %v, the next watch is after %s, want %s", text, err, got, least)
		}
		server.Close()
	}
}
