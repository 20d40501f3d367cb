package health

import (
	"errors"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

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
