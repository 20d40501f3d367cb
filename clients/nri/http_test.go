package main

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/berthd/berth/clients/internal/health"
)

// TestHTTP: refusals are counted by reason, and reasons are bounded. Readiness is a metric, too.
func TestHTTP(t *testing.T) {
	t.Parallel()
	var missing error
	ready := func() error { return missing }
	c := newCounters(ready)
	h := health.Handler(c.registry, ready)
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
	for _, want := range []string{`berth_nri_refusals_total{reason="OutOfcpu"} 2`, `berth_nri_refusals_total{reason="Other"} 6`,
		"berth_nri_repeated_refusals_total 1", "berth_nri_ready 1"} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
	if got := strings.Count(text, "berth_nri_refusals_total{"); got > maxReasons+1 {
		t.Errorf("there are %d series of refusals", got)
	}
	missing = errors.New("berthd is not followed")
	if _, text := get("/metrics"); !strings.Contains(text, "berth_nri_ready 0\n") {
		t.Error("the metrics do not say that it is not ready")
	}
}
