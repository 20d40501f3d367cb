package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// maxNode bounds an answer of the API server in bytes. A node object lists images.
	maxNode = 4 << 20
	// maxStatus bounds the text of a failure.
	maxStatus = 64 << 10
	// nodeEvery is the interval of readings of the node object: its allocatable amounts change when
	// the kubelet starts with another configuration, or a device plugin registers.
	nodeEvery = 5 * time.Minute
	// apiTimeout bounds a call of the API server.
	apiTimeout = 10 * time.Second
	// eventEvery is how often an event with the same text is sent. The API server keeps events for
	// an hour.
	eventEvery = time.Hour
)

// apiServer reads the node object, and sends events about it, with the rights of a service
// account. It is optional: without it nothing is compared.
type apiServer struct {
	base            string // https://HOST:PORT
	accounts        string // the directory with the token and the certificate authority
	node            string
	set             string // NAMESPACE/NAME of the DaemonSet that this belongs to; may be empty
	log             *slog.Logger
	now             func() time.Time
	taken           chan struct{} // latest is new
	shown           chan struct{} // deleting is new
	deletionTimeout time.Duration // how long removed waits for a deletion

	mu          sync.Mutex // guards the fields below
	uid         types.UID
	labels      map[string]string
	allocatable map[string]string
	failing     string    // the failure that is in the log
	latest      []string  // berthd's last sentences about the excess
	said        string    // the excess that is in the log
	again       time.Time // when an event with that excess may be sent again
	deleting    bool      // the watch has shown that the DaemonSet is being deleted
	authority   []byte    // what client trusts
	client      *http.Client
}

// newAPIServer returns nil if berth-nri does not run in a pod with a service account.
func newAPIServer(accounts, node, set string, log *slog.Logger) (*apiServer, error) {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if accounts == "" || host == "" || port == "" {
		return nil, nil
	}
	if _, err := os.Stat(filepath.Join(accounts, "token")); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("--service-account: %w", err)
	}
	return &apiServer{base: "https://" + net.JoinHostPort(host, port), accounts: accounts, node: node, set: set, log: log, now: time.Now,
		taken: make(chan struct{}, 1), shown: make(chan struct{}, 1), deletionTimeout: lostTimeout}, nil
}

// counted returns what the scheduler counts as allocatable; empty if that is unknown.
func (a *apiServer) counted() map[string]string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.allocatable
}

// statusError is an answer of the API server that is no success.
type statusError struct {
	error
	code   int
	status metav1.Status // as far as the answer is one
	after  time.Duration // how long the API server wants no further request; 0 if it does not say
}

func (s *statusError) Unwrap() error { return s.error }

// RetryAfter returns how long the API server wants no further request.
func (s *statusError) RetryAfter() time.Duration { return s.after }

// maxRetryAfter bounds what an API server may ask for.
const maxRetryAfter = 10 * time.Minute

// retryAfter reads the header of that name, in seconds (RFC 9110); 0 if it has no number.
func retryAfter(h http.Header) time.Duration {
	seconds, err := strconv.ParseUint(h.Get("Retry-After"), 10, 31)
	if err != nil {
		return 0
	}
	return min(time.Duration(seconds)*time.Second, maxRetryAfter)
}

// take stores berthd's sentences about the excess.
func (a *apiServer) take(sentences []string) {
	a.mu.Lock()
	a.latest = sentences
	a.mu.Unlock()
	select {
	case a.taken <- struct{}{}:
	default: // watch has not read the earlier element yet
	}
}

// watch reads the node object periodically, and calls changed after each change of its amounts. It
// reports berthd's sentences about the excess.
func (a *apiServer) watch(ctx context.Context, changed func()) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-a.taken:
			// The amounts that berthd has compared may be those of before a restart of the kubelet.
			if a.unsaid() {
				if different, err := a.read(ctx); err == nil && different {
					changed()
					continue
				}
			}
		case <-timer.C:
			different, err := a.read(ctx)
			a.report(err)
			if different {
				changed()
			}
			timer.Reset(nodeEvery)
		case <-ctx.Done():
			return
		}
		a.say(ctx)
	}
}

// unsaid reports whether berthd has sentences about an excess that are not in the log.
func (a *apiServer) unsaid() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.latest) > 0 && strings.Join(a.latest, "; ") != a.said
}

// report logs a failure once, and its end.
func (a *apiServer) report(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && a.failing == "" {
		a.log.Warn("the node's allocatable amounts cannot be read, so they are not compared with berthd's", "node", a.node, "error", err)
	}
	if text == "" && a.failing != "" {
		a.log.Info("the node's allocatable amounts can be read again", "node", a.node)
	}
	a.failing = text
}

// read reads the node object, and reports whether its amounts have changed.
func (a *apiServer) read(ctx context.Context) (changed bool, err error) {
	var n corev1.Node
	if err := a.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(a.node), nil, &n); err != nil {
		return false, fmt.Errorf("get node %s: %w", a.node, err)
	}
	if n.Name != a.node {
		return false, errdefs.Internalf("the API server answers with node %.80q, expected %q", n.Name, a.node)
	}
	now := map[string]string{}
	for name, amount := range n.Status.Allocatable {
		// The others are not compared: pods are no amount, and devices may be the kubelet's.
		if name == corev1.ResourceCPU || name == corev1.ResourceMemory || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			now[string(name)] = amount.String()
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	changed = !maps.Equal(now, a.allocatable)
	a.allocatable, a.labels, a.uid = now, n.Labels, n.UID
	return changed, nil
}

// say logs the amounts that the scheduler counts and pods cannot have, and creates an event of the
// node. The same text is logged once.
func (a *apiServer) say(ctx context.Context) {
	a.mu.Lock()
	text := strings.Join(a.latest, "; ")
	now, uid := a.now(), a.uid
	repeats := text == a.said
	if repeats && (text == "" || now.Before(a.again)) {
		a.mu.Unlock()
		return
	}
	a.said = text
	a.mu.Unlock()
	if text == "" {
		a.log.Info("the scheduler counts no more than pods can have")
		return
	}
	level := slog.LevelDebug
	if !repeats {
		level = slog.LevelWarn
		a.log.Warn("the scheduler counts more than pods can have: pods that it sends may be rejected", "node", a.node, "excess", text)
	}
	pause := eventEvery
	if err := a.send(ctx, event{a.aboutNode(uid), "SchedulerCountsMore", text, true}, now); err != nil {
		pause = nodeEvery
		a.log.Log(ctx, level, "send an event about the node failed", "node", a.node, "error", err)
	}
	a.mu.Lock()
	a.again = now.Add(pause)
	a.mu.Unlock()
}

// nodeUID is the uid of the node object; empty before it was read.
func (a *apiServer) nodeUID() types.UID {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.uid
}

// shorten cuts a text to a number of bytes, between two characters.
func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-len("…")], "") + "…"
}

// maxSecret bounds the files of a service account.
const maxSecret = 1 << 20

// open sends a request to the API server. The token and the certificates are read for each, because
// the kubelet renews them.
func (a *apiServer) open(ctx context.Context, method, path string, body any) (*http.Response, error) {
	token, err := trust.ReadFile(filepath.Join(a.accounts, "token"), maxSecret)
	if err != nil {
		return nil, err
	}
	authority, err := trust.ReadFile(filepath.Join(a.accounts, "ca.crt"), maxSecret)
	if err != nil {
		return nil, err
	}
	client, err := a.clientFor(authority)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, &content)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/apply-patch+yaml") // JSON is YAML, too
		// not sent: package http repeats it if the connection was closed meanwhile
		req.Header["Idempotency-Key"] = nil
	}
	answer, err := client.Do(req)
	if err != nil || answer.StatusCode < 300 {
		return answer, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus))
	if err != nil {
		return nil, err
	}
	var s metav1.Status
	_ = json.Unmarshal(text, &s) // without a message, the code says enough
	return nil, &statusError{errdefs.Unavailablef("the API server answers %d: %.300s", answer.StatusCode,
		cmp.Or(s.Message, http.StatusText(answer.StatusCode))), answer.StatusCode, s, retryAfter(answer.Header)}
}

// idleTimeout is how long a connection to the API server is kept without a request. A handshake for each write of each node is much work
// for the API servers of a large cluster.
const idleTimeout = 5 * time.Minute

// clientFor returns a client that trusts an authority, and that keeps its connections as long as the authority is the same.
func (a *apiServer) clientFor(authority []byte) (*http.Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.client != nil && bytes.Equal(a.authority, authority) {
		return a.client, nil
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, errdefs.Invalidf("%s: expected certificates in PEM", filepath.Join(a.accounts, "ca.crt"))
	}
	if a.client != nil {
		a.client.CloseIdleConnections()
	}
	a.authority = authority
	a.client = &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
			IdleConnTimeout: idleTimeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return a.client, nil
}

// call makes a call of the API server.
func (a *apiServer) call(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	answer, err := a.open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxNode+1))
	switch {
	case err != nil:
		return err
	case len(text) > maxNode:
		return errdefs.Exhaustedf("the answer is larger than %d bytes", maxNode)
	case into == nil:
		return nil
	}
	return json.Unmarshal(text, into)
}
