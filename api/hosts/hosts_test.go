package hosts

import (
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// TestOnly: a name that another site can let lead here gets no answer.
func TestOnly(t *testing.T) {
	t.Parallel()
	own, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	h := Only("metrics.internal:10470", http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for host, want := range map[string]int{
		"": 200, "localhost": 200, "LOCALHOST:1": 200, "127.0.0.1:10470": 200, "[::1]:10470": 200, "192.0.2.7": 200, "[2001:db8::1]:1": 200,
		own: 200, own + ":10470": 200, "metrics.internal": 200,
		"evil.example": 403, "localhost.evil.example:10470": 403, "127.0.0.1.evil.example": 403, own + ".evil.example": 403,
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%q: %d, want %d", host, w.Code, want)
		}
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]bool{"localhost:1": true, "127.0.0.2": true, "[::1]:5": true, "": false, "192.0.2.1": false,
		"localhost.evil.example": false} {
		if got := Loopback(host); got != want {
			t.Errorf("%q: %t", host, got)
		}
	}
}
