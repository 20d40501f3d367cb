package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHTTP: refusals are counted by reason, and reasons are bounded; health says what is missing.
func TestHTTP(t *testing.T) {
	t.Parallel()
	var missing error
	ready := func() error { return missing }
	c := newCounters(ready)
	h := c.handler(ready)
	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	c.refused("OutOfcpu", false)
	c.refused("OutOfcpu", false)
	c.refused("", true)
	for n := range maxReasons + 3 {
		c.refused(fmt.Sprintf("Reason%d", n), false)
	}
	_, text := get("/metrics")
	for _, want := range []string{`berth_nri_refusals_total{reason="OutOfcpu"} 2`, `berth_nri_refusals_total{reason="Other"} 4`, "berth_nri_repeated_refusals_total 1", "berth_nri_ready 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
	if got := strings.Count(text, "berth_nri_refusals_total{"); got > maxReasons+1 {
		t.Errorf("there are %d series of refusals", got)
	}
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("ready: %d", code)
	}
	missing = errors.New("berthd is not followed")
	if code, text := get("/readyz"); code != 503 || !strings.Contains(text, "berthd is not followed") {
		t.Errorf("not ready: %d %s", code, text)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("alive: %d", code)
	}
	if _, text := get("/metrics"); !strings.Contains(text, "berth_nri_ready 0\n") {
		t.Error("the metrics do not say that it is not ready")
	}
	if _, err := serveHTTP("nowhere:-1", h, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "--http") {
		t.Errorf("a bad address: %v", err)
	}
	stop, err := serveHTTP("127.0.0.1:0", h, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	stop()
}
