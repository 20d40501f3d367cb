package monitor

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berthd/berth/hack/testing/nodetest"
)

// cluster plays the API server: good may get everything, own only the metrics of this program.
type cluster struct {
	mu      sync.Mutex
	reviews int
	err     error
	hangs   map[string]chan struct{} // by token: a review is there, and waits for the end of its context
	allows  map[string]string        // by token: the paths that it may get
}

func (c *cluster) review(ctx context.Context, token, path string) (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reviews++
	if there := c.hangs[token]; there != nil {
		c.mu.Unlock()
		there <- struct{}{}
		<-ctx.Done()
		c.mu.Lock()
		return false, ctx.Err()
	}
	return c.err == nil && strings.Contains(c.allows[token]+" ", path+" "), c.err
}

// node is a handler with its clock.
type node struct {
	*handler
	cluster *cluster
	now     time.Time
}

func newNode(t *testing.T, others map[string]string) *node {
	t.Helper()
	n := &node{cluster: &cluster{allows: map[string]string{"good": "/metrics /metrics/berthd /metrics/gone", "own": "/metrics"}},
		now: time.Unix(1000, 0)}
	n.handler = newHandler(Config{
		Review: n.cluster.review, Others: others, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return n.now },
		Own: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "own 1") }),
	})
	return n
}

// get returns the code and the text of an answer.
func (n *node) get(method, path, authorization string) (int, string) {
	return n.getWithin(context.Background(), method, path, authorization)
}

func (n *node) getWithin(ctx context.Context, method, path, authorization string) (int, string) {
	r := httptest.NewRequestWithContext(ctx, method, path, nil)
	if authorization != "" {
		r.Header.Set("Authorization", authorization)
	}
	w := httptest.NewRecorder()
	n.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// socket serves a handler on a unix socket.
func socket(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "m") // the paths of sockets are short (unix(7))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return path
}

// TestWhoMayRead: metrics are for those who have a token and the right to get the path. Other paths and methods are not
// served, whoever calls.
func TestWhoMayRead(t *testing.T) {
	t.Parallel()
	berthd := socket(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" || r.Header.Get("Authorization") != "" || r.Host != "localhost" {
			t.Errorf("berthd is called with %s, %v", r.URL, r.Header)
		}
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, "berthd 1")
	})
	n := newNode(t, map[string]string{"berthd": berthd, "gone": "/nowhere/s"})
	for _, row := range []struct {
		method, path, authorization string
		code                        int
		text                        string
	}{
		{"GET", "/metrics", "Bearer good", 200, "own 1"},
		{"GET", "/metrics/berthd", "Bearer good", 200, "berthd 1"},
		{"GET", "/metrics", "Bearer own", 200, "own 1"},
		{"GET", "/metrics/berthd", "Bearer own", 403, "may not get /metrics/berthd"},
		{"GET", "/metrics", "Bearer bad", 403, "may not get"},
		{"GET", "/metrics", "", 401, "expected a token"},
		{"GET", "/metrics", "Bearer ", 401, "expected a token"},
		{"GET", "/metrics", "Basic good", 401, "expected a token"},
		{"GET", "/metrics", "Bearer " + strings.Repeat("x", maxToken+1), 401, "expected a token"},
		{"GET", "/metrics/gone", "Bearer good", 502, "does not answer"},
		{"GET", "/metrics/other", "Bearer good", 404, ""},
		{"GET", "/metrics/", "Bearer good", 404, ""},
		{"GET", "/", "Bearer good", 404, ""},
		{"GET", "/healthz", "Bearer good", 404, ""},
		{"POST", "/metrics", "Bearer good", 405, "GET"},
	} {
		if code, text := n.get(row.method, row.path, row.authorization); code != row.code || !strings.Contains(text, row.text) ||
			row.code != 200 && strings.Contains(text, " 1") {
			t.Errorf("%s %s with %.20q: %d %q, want %d %q", row.method, row.path, row.authorization, code, text, row.code, row.text)
		}
	}
}

// TestDecisions: a decision holds for a minute, and one that allows holds longer while the API server does not answer. Tokens that are not
// known cost few reviews, and do not keep a known one out.
func TestDecisions(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	expect := func(when, token string, code, reviews int) {
		t.Helper()
		n.cluster.reviews = 0
		if got, text := n.get("GET", "/metrics", "Bearer "+token); got != code || n.cluster.reviews != reviews {
			t.Errorf("%s: %d %s after %d reviews, want %d after %d", when, got, text, n.cluster.reviews, code, reviews)
		}
	}
	expect("first", "good", 200, 1)
	expect("again", "good", 200, 0)
	n.now = n.now.Add(decisionAge)
	expect("after a minute", "good", 200, 1)

	for i := range 10 * maxDecisions {
		n.get("GET", "/metrics", fmt.Sprint("Bearer bad", i))
	}
	if n.cluster.reviews > reviewsBurst+1 || len(n.decisions) > maxDecisions {
		t.Errorf("a flood has caused %d reviews, and %d decisions are kept", n.cluster.reviews, len(n.decisions))
	}
	expect("of the flood", "bad", http.StatusTooManyRequests, 0)
	expect("beside a flood", "good", 200, 0)
	n.now = n.now.Add(decisionAge)
	n.limit.AllowN(n.now, reviewsBurst)
	expect("beside a flood, after a minute", "good", 200, 1)
	for range 100 { // a slow flood
		n.now = n.now.Add(time.Second / reviewsPerSecond)
		n.get("GET", "/metrics", "Bearer bad"+n.now.String())
	}
	n.now = n.now.Add(decisionAge)
	n.cluster.err = errors.New("away")
	expect("the API server is away", "good", 200, 1)
	n.now = n.now.Add(staleAge)
	expect("the API server is away for long", "good", 503, 1)
	n.cluster.err = nil
	n.cluster.allows = nil
	expect("the right is withdrawn", "good", 403, 1)
	expect("it stays so", "good", 403, 0)
	if len(n.decisions) > maxDecisions {
		t.Errorf("%d decisions are kept", len(n.decisions))
	}
}

// TestForgetsRefusalsFirst: of many decisions those that refuse are forgotten first, the oldest one before the others.
func TestForgetsRefusalsFirst(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	q := func(path string) question { return question{path: path} }
	n.decisions = map[question]decision{
		q("allowed early"): {true, time.Unix(1, 0)}, q("refused early"): {false, time.Unix(2, 0)},
		q("allowed late"): {true, time.Unix(3, 0)}, q("refused late"): {false, time.Unix(4, 0)},
	}
	for _, path := range []string{"refused early", "refused late", "allowed early", "allowed late"} {
		if n.forget(); func() bool { _, kept := n.decisions[q(path)]; return kept }() {
			t.Errorf("%q is not forgotten next: %v", path, n.decisions)
		}
	}
}

// TestOtherProgramFails: what another program answers that are no metrics is not passed on.
func TestOtherProgramFails(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]http.HandlerFunc{
		"it fails": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "secret", 500) },
		"it leads away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://10.0.0.1/", http.StatusFound)
		},
		"it is too large": func(w http.ResponseWriter, _ *http.Request) {
			for range maxMetrics/1024 + 2 {
				if _, err := w.Write(make([]byte, 1024)); err != nil {
					return
				}
			}
		},
		"it breaks off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, "half")
		},
	} {
		n := newNode(t, map[string]string{"berthd": socket(t, h)})
		if code, text := n.get("GET", "/metrics/berthd", "Bearer good"); code != http.StatusBadGateway ||
			!strings.Contains(text, "does not answer") || strings.Contains(text, "secret") {
			t.Errorf("%s: %d %.100q", name, code, text)
		}
	}
}

// TestScrapesAreFew: more requests at a time than a few are refused.
func TestScrapesAreFew(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	inside, hold := make(chan struct{}), make(chan struct{})
	n.Own = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		inside <- struct{}{}
		<-hold
	})
	var all sync.WaitGroup
	for range maxScrapes {
		all.Go(func() { n.get("GET", "/metrics", "Bearer good") })
		<-inside
	}
	if code, _ := n.get("GET", "/metrics", "Bearer good"); code != http.StatusServiceUnavailable {
		t.Errorf("one more request: %d", code)
	}
	close(hold)
	all.Wait()
}

// TestReviewsHoldNoScrape: while the API server does not answer, tokens that are not known keep nobody out who was allowed before, and only
// a few of them wait for it.
func TestReviewsHoldNoScrape(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	if code, text := n.get("GET", "/metrics", "Bearer good"); code != 200 {
		t.Fatalf("%d %s", code, text)
	}
	there := make(chan struct{})
	n.cluster.hangs = map[string]chan struct{}{}
	for i := range maxReviews + 1 {
		n.cluster.hangs[fmt.Sprint("bad", i)] = there
	}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	var all sync.WaitGroup
	for i := range maxReviews {
		all.Go(func() {
			if code, _ := n.getWithin(ctx, "GET", "/metrics", fmt.Sprint("Bearer bad", i)); code != http.StatusServiceUnavailable {
				t.Errorf("without an answer about a token: %d", code)
			}
		})
		<-there
	}
	if code, text := n.get("GET", "/metrics", "Bearer good"); code != 200 {
		t.Errorf("beside tokens that are not known: %d %s", code, text)
	}
	if code, _ := n.get("GET", "/metrics", fmt.Sprint("Bearer bad", maxReviews)); code != http.StatusTooManyRequests {
		t.Errorf("one more token that is not known: %d", code)
	}
	end()
	all.Wait()
}

// TestStalePermissionIsQuick: while the API server does not answer, whoever was allowed before waits for it for a moment only. If that
// was long ago, the answer is awaited.
func TestStalePermissionIsQuick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newNode(t, nil)
		n.get("GET", "/metrics", "Bearer good")
		n.cluster.hangs = map[string]chan struct{}{"good": make(chan struct{}, 10)}
		for _, row := range []struct {
			age, limit time.Duration
			code       int
		}{{decisionAge, staleTimeout, 200}, {0, staleTimeout, 200}, {staleAge, time.Minute, http.StatusServiceUnavailable}} {
			n.now = n.now.Add(row.age)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			began := time.Now()
			if code, _ := n.getWithin(ctx, "GET", "/metrics", "Bearer good"); code != row.code || time.Since(began) != row.limit {
				t.Errorf("after %s: %d after %s, want %d after %s", row.age, code, time.Since(began), row.code, row.limit)
			}
			cancel()
		}
	})
}

// certify writes a certificate for a name, and its key.
func certify(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	text, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: text})
	for file, content := range map[string][]byte{"tls.crt": certificate,
		"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return roots
}

// TestServe: the connection is TLS, also after the certificate was renewed. An address is served when no other program has it any more, and
// when the node has it.
func TestServe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := newNode(t, nil)
	n.Certificate, n.Key, n.Address = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), "127.0.0.1:0"
	bad := n.Config
	bad.Address = "nowhere:-1"
	if _, err := Serve(bad); err == nil {
		t.Error("a bad address")
	}
	missing := n.Config
	missing.Address = "192.0.2.1:0" // no machine has it (RFC 5737)
	if stop, err := Serve(missing); err != nil {
		t.Errorf("an address that the node does not have yet: %v", err)
	} else {
		stop()
	}
	l, err := net.Listen("tcp", "[127.0.0.1]:0") // as the manifest writes addresses of both families
	if err != nil {
		t.Fatal(err)
	}
	n.Address, n.Now = l.Addr().String(), time.Now
	stop, err := Serve(n.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	_ = l.Close()
	get := func(name string, roots *x509.CertPool) (string, error) {
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12}}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+n.Address+"/metrics", nil)
		if err != nil {
			return "", err
		}
		req.Header.Set("Authorization", "Bearer good")
		answer, err := client.Do(req)
		if err != nil {
			return "", err
		}
		defer func() { _ = answer.Body.Close() }()
		text, err := io.ReadAll(answer.Body)
		return string(text), err
	}
	if text, err := get("old", nil); err == nil {
		t.Errorf("without a certificate: %q", text)
	}
	roots := certify(t, dir, "old")
	nodetest.Eventually(t, time.Minute, "the metrics are served", func() bool {
		text, err := get("old", roots)
		return err == nil && text == "own 1"
	})
	renewed := certify(t, dir, "new")
	if text, err := get("new", renewed); err != nil || text != "own 1" {
		t.Errorf("after the certificate was renewed: %q, %v", text, err)
	}
	plain, err := http.Get("http://" + n.Address + "/metrics") //nolint:noctx // a test
	if err == nil {
		text, _ := io.ReadAll(plain.Body)
		_ = plain.Body.Close()
		if strings.Contains(string(text), "own") {
			t.Error("metrics are served without TLS")
		}
	}
}
