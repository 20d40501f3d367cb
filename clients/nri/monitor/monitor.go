package monitor

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/internal/health"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// maxScrapes bounds the answers at a time, and maxReviews the reviews at a time of tokens without a
	// decision that allows something.
	maxScrapes = 4
	maxReviews = 4
	// maxMetrics bounds the metrics of another program in bytes, otherTimeout their reading.
	maxMetrics   = 16 << 20
	otherTimeout = 10 * time.Second
	// maxToken bounds a token, and maxPEM a file with a certificate or a key, in bytes.
	maxToken = 8 << 10
	maxPEM   = 1 << 20
	// decisionAge is how long a decision holds, maxDecisions how many are kept.
	// While the API server does not answer, an owner who was allowed before still is for staleAge: then metrics matter most. Such an owner
	// waits for it for staleTimeout with each request.
	decisionAge  = time.Minute
	staleAge     = 10 * time.Minute
	staleTimeout = time.Second
	maxDecisions = 128
	// reviewsPerSecond is for tokens without a decision that allows something; reviewsBurst may come at once.
	reviewsPerSecond = 2
	reviewsBurst     = 10
)

// Config configures what is served, and to whom.
type Config struct {
	Address          string // HOST:PORT
	Certificate, Key string // files in PEM
	// Review reports whether the owner of a token may get a path. An error means that it is not known.
	Review func(ctx context.Context, token, path string) (bool, error)
	Own    http.Handler      // the metrics of this program
	Others map[string]string // sockets of other programs, which serve /metrics, by name
	Log    *slog.Logger
	Now    func() time.Time
}

// Serve serves until stop is called. If another program has the address, or the node does not have it yet, Serve logs a warning and tries
// it again. A certificate that is missing or damaged ends nothing: no connection succeeds until the files are right.
func Serve(c Config) (stop func(), err error) {
	files := &pair{certificate: c.Certificate, key: c.Key}
	if _, err := files.get(nil); err != nil {
		c.Log.Warn("there is no certificate for the metrics yet, so nobody can read them", "address", c.Address, "error", err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: files.get}
	return health.Service{What: "metrics", Handler: newHandler(c), TLS: config, Log: c.Log}.Serve(c.Address)
}

// pair is a certificate with its key.
type pair struct{ certificate, key string }

// get reads the files for each connection: they are small, and renewed at any time.
func (p *pair) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	certificate, err := trust.ReadFile(p.certificate, maxPEM)
	if err != nil {
		return nil, err
	}
	key, err := trust.ReadFile(p.key, maxPEM)
	if err != nil {
		return nil, err
	}
	both, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, errdefs.Invalidf("%s and %s: %w", p.certificate, p.key, err)
	}
	return &both, nil
}

// handler decides about requests.
type handler struct {
	Config
	limit   *rate.Limiter // of reviews of tokens that are allowed nothing
	scrapes chan struct{}
	reviews chan struct{} // of such tokens

	mu        sync.Mutex // guards decisions
	decisions map[question]decision
}

// question is a token, of which only a digest is kept, and a path.
type question struct {
	token [sha256.Size]byte
	path  string
}

type decision struct {
	allowed bool
	at      time.Time
}

func newHandler(c Config) *handler {
	return &handler{
		Config: c, limit: rate.NewLimiter(reviewsPerSecond, reviewsBurst), scrapes: make(chan struct{}, maxScrapes),
		reviews: make(chan struct{}, maxReviews), decisions: map[question]decision{},
	}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, other := strings.CutPrefix(r.URL.Path, "/metrics/")
	socket := h.Others[name]
	if r.URL.Path != "/metrics" && (!other || socket == "") {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet {
		http.Error(w, "expected GET", http.StatusMethodNotAllowed)
		return
	}
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !bearer || token == "" || len(token) > maxToken {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "expected a token of the cluster", http.StatusUnauthorized)
		return
	}
	switch allowed, err := h.allowed(r.Context(), token, r.URL.Path); {
	case errdefs.ClassOf(err) == errdefs.Exhausted:
		http.Error(w, err.Error(), http.StatusTooManyRequests)
		return
	case err != nil:
		h.Log.Debug("review of a token", "error", err)
		http.Error(w, "the API server does not answer", http.StatusServiceUnavailable)
		return
	case !allowed:
		http.Error(w, "the owner of the token may not get "+r.URL.Path, http.StatusForbidden)
		return
	}
	select {
	case h.scrapes <- struct{}{}:
		defer func() { <-h.scrapes }()
	default:
		http.Error(w, "too many requests at a time", http.StatusServiceUnavailable)
		return
	}
	if other {
		h.forward(w, r, socket)
	} else {
		h.Own.ServeHTTP(w, r)
	}
}

// allowed decides about a token. A token that was allowed before is reviewed without the limits, which others may use up.
func (h *handler) allowed(ctx context.Context, token, path string) (bool, error) {
	q := question{sha256.Sum256([]byte(token)), path}
	h.mu.Lock()
	known, ok := h.decisions[q]
	h.mu.Unlock()
	if ok && h.Now().Sub(known.at) < decisionAge {
		return known.allowed, nil
	}
	stale := known.allowed && h.Now().Sub(known.at) < staleAge
	switch {
	case stale:
		limited, cancel := context.WithTimeout(ctx, staleTimeout)
		defer cancel()
		ctx = limited
	case !known.allowed:
		select {
		case h.reviews <- struct{}{}:
			defer func() { <-h.reviews }()
		default:
			return false, errdefs.Exhaustedf("too many tokens that are not known at a time")
		}
		if !h.limit.AllowN(h.Now(), 1) {
			return false, errdefs.Exhaustedf("too many tokens that are not known")
		}
	}
	allowed, err := h.Review(ctx, token, path)
	if err != nil && stale {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, again := h.decisions[q]; !again && len(h.decisions) >= maxDecisions {
		h.forget()
	}
	h.decisions[q] = decision{allowed, h.Now()}
	return allowed, nil
}

// forget removes a decision: the oldest one that refuses, or else the oldest one. The caller holds mu.
func (h *handler) forget() {
	var oldest question
	var found *decision
	for q, d := range h.decisions {
		if found == nil || found.allowed && !d.allowed || found.allowed == d.allowed && d.at.Before(found.at) {
			oldest, found = q, &d
		}
	}
	delete(h.decisions, oldest)
}

// forward answers with the metrics of another program.
func (h *handler) forward(w http.ResponseWriter, r *http.Request, socket string) {
	ctx, cancel := context.WithTimeout(r.Context(), otherTimeout)
	defer cancel()
	text, kind, err := read(ctx, socket, r.Header.Get("Accept"))
	if err != nil {
		h.Log.Debug("read the metrics of another program failed", "socket", socket, "error", err)
		http.Error(w, fmt.Sprintf("%s does not answer", socket), http.StatusBadGateway)
		return
	}
	w.Header().Set("Content-Type", kind)
	_, _ = w.Write(text)
}

// read reads the metrics at a socket.
func read(ctx context.Context, socket, accept string) (text []byte, kind string, err error) {
	if err := trust.CheckSocket(socket); err != nil {
		return nil, "", err
	}
	var d net.Dialer
	transport := &http.Transport{DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", socket)
		}}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request,
		[]*http.Request) error {
		return http.ErrUseLastResponse
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/metrics", nil)
	if err != nil {
		return nil, "", err
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, "", errdefs.Unavailablef("the program answers %s", answer.Status)
	}
	text, err = io.ReadAll(io.LimitReader(answer.Body, maxMetrics+1))
	switch {
	case err != nil:
		return nil, "", err
	case len(text) > maxMetrics:
		return nil, "", errdefs.Exhaustedf("the metrics are larger than %d bytes", maxMetrics)
	}
	return text, answer.Header.Get("Content-Type"), nil
}
