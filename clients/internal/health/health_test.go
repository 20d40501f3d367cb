package health

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestHandler: health says what is missing, and the metrics are those of the registry.
func TestHandler(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_test"}, func() float64 { return 7 }))
	var missing error
	h := Handler(registry, func() error { return missing })
	expect := func(path string, code int, text string) {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if w.Code != code || !strings.Contains(w.Body.String(), text) {
			t.Errorf("%s: %d %q, want %d %q", path, w.Code, w.Body, code, text)
		}
	}
	expect("/metrics", 200, "berth_test 7\n")
	expect("/readyz", 200, "ok")
	missing = errors.New("berthd is not followed")
	expect("/readyz", 503, "berthd is not followed")
	expect("/healthz", 200, "ok")
	expect("/other", 404, "")
}

// TestServe: the error of an address names the flag, and stop ends the server.
func TestServe(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	h := Handler(prometheus.NewRegistry(), func() error { return nil })
	if _, err := Serve("nowhere:-1", h, log); err == nil || !strings.Contains(err.Error(), "--http") {
		t.Errorf("a bad address: %v", err)
	}
	stop, err := Serve("127.0.0.1:0", h, log)
	if err != nil {
		t.Fatal(err)
	}
	stop()
}

// TestProbe: a probe over the socket that only the program's user can connect to, of a program that works, that does not, and that is
// not there.
func TestProbe(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "h") // a test's own may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	if err := os.WriteFile(path, nil, 0o600); err != nil { // left by an earlier program
		t.Fatal(err)
	}
	var missing atomic.Pointer[string]
	h := Handler(prometheus.NewRegistry(), func() error {
		if text := missing.Load(); text != nil {
			return errors.New(*text)
		}
		return nil
	})
	stop, err := (&Addresses{Socket: path}).Serve(h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, kind := range []string{"live", "ready"} {
		if err := Probe(ctx, path, kind); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := Probe(ctx, path, "well"); err == nil || !strings.Contains(err.Error(), "expected live or ready") {
		t.Errorf("another kind: %v", err)
	}
	missing.Store(new("berthd is not followed"))
	if err := Probe(ctx, path, "live"); err != nil {
		t.Errorf("live, and not ready: %v", err)
	}
	time.AfterFunc(100*time.Millisecond, cancel) // the kubelet does not wait
	if err := Probe(ctx, path, "ready"); err == nil || !strings.Contains(err.Error(), "berthd is not followed") {
		t.Errorf("not ready: %v", err)
	}
	stop()
	if err := Probe(t.Context(), path, "live"); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("after the end: %v", err)
	}
}

// TestOccupiedAddress: another program has the port, or the machine does not have the address yet. That is no error, and the end of the
// program does not wait for the address.
func TestOccupiedAddress(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, address := range []string{l.Addr().String(), "192.0.2.1:0"} { // no machine has the second one (RFC 5737)
		var log bytes.Buffer
		stop, err := (&Addresses{HTTP: address}).Serve(http.NotFoundHandler(), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if !strings.Contains(log.String(), "it is tried again") {
			t.Errorf("%s: the log has %s", address, log.String())
		}
	}
}
