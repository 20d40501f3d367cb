package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"
)

const (
	// kubeletPort is the port of a kubelet's web server, if the flag names none.
	kubeletPort = "10250"
	// maxServed bounds the list of a kubelet's web server in bytes.
	maxServed = 32 << 20
	// servedTimeout is the time for one list. Callers wait for it as long as for other calls of the kubelet: a list that
	// comes later answers their next try.
	servedTimeout = 10 * time.Second
	// servedAge is how old a list may be that answers a question.
	servedAge = time.Minute
	// servedGrace is how long the failures after a good answer are temporary, and so refuse pods. A kubelet that restarts, or whose API
	// server is away and cannot review tokens, answers again. Later the server counts as lost: pods must start.
	servedGrace = 5 * time.Minute
	// servedSettle is how long a list may lack pods of the API server after the kubelet has read them. It adds them to its list one by one,
	// and admits each one meanwhile. Before, it lists static pods only.
	servedSettle = 30 * time.Second
)

// kubeletServer reads pods from the web server of the kubelet: https://NODE:10250/pods, with the right nodes/pods. It is the source of
// specifications for a kubelet without the Pods API. The list has no resource version of its own, static pods have none,
// and the amounts that the kubelet has allocated may change before that of their pod does. So a list answers one question
// about each pod, and another question about the same pod reads it again, unless it was read for another pod meanwhile: after a new
// connection of the runtime there are questions about all pods. An answer is at most servedAge old. If a container has newer values, it is
// refused, and the next try reads the list again.
type kubeletServer struct {
	url, node string
	accounts  string // the directory with the token and the certificate authority of the cluster
	authority string // a file with further authorities; may be empty
	now       func() time.Time
	most      int           // bytes of a list
	timeout   time.Duration // of a list

	mu       sync.Mutex // guards the fields below
	reading  chan struct{}
	last     served
	answered bool      // there was a good answer
	failure  error     // of the last list
	failing  time.Time // the first failure since the last good answer
}

// served is a list.
type served struct {
	pods   map[string]*typesv1.Pod // those that have answered no question
	active []string
	at     time.Time // when it was read
	seen   time.Time // since when the kubelet has a pod of the API server; zero if the list has none
}

// incomplete returns why the list may lack pods of the API server; nil if it does not. A kubelet that has just started answers like one
// without such pods, but a cluster's kubelet has at least that of berth-nri.
func (s *served) incomplete() error {
	switch {
	case s.seen.IsZero():
		return errdefs.Preconditionf("the kubelet lists no pods of the API server yet")
	case s.at.Sub(s.seen) < servedSettle:
		return errdefs.Preconditionf("the kubelet has read the pods of the API server at %s, and its list may lack some for %s",
			s.seen.Format(time.RFC3339), servedSettle)
	}
	return nil
}

// newKubeletServer returns the web server of the kubelet at ADDRESS or ADDRESS:PORT.
func newKubeletServer(address, node, accounts, authority string) (*kubeletServer, error) {
	host, port := address, kubeletPort
	if _, err := netip.ParseAddr(address); err != nil {
		if h, p, err := net.SplitHostPort(address); err == nil {
			host, port = h, p
		}
	}
	if host == "" || port == "" || strings.ContainsAny(host, "/@[]?# ") || strings.Trim(port, "0123456789") != "" {
		return nil, errdefs.Invalidf("--kubelet %q: expected ADDRESS or ADDRESS:PORT of the node", address)
	}
	return &kubeletServer{
		url: "https://" + net.JoinHostPort(host, port) + "/pods", node: node, accounts: accounts, authority: authority, now: time.Now,
		most: maxServed, timeout: servedTimeout,
	}, nil
}

// Pod implements policy.Source.
func (k *kubeletServer) Pod(ctx context.Context, uid string) (*typesv1.Pod, error) {
	if pod, ok := k.take(uid); ok {
		return pod, nil
	}
	if err := k.read(ctx); err != nil {
		return nil, k.temporary(err)
	}
	if pod, ok := k.take(uid); ok {
		return pod, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return nil, k.last.incomplete()
}

// take returns a pod of the list that has answered no question about it yet.
func (k *kubeletServer) take(uid string) (*typesv1.Pod, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pod, ok := k.last.pods[uid]
	if !ok || k.now().Sub(k.last.at) > servedAge {
		return nil, false
	}
	delete(k.last.pods, uid)
	return pod, true
}

// Active implements policy.Source.
func (k *kubeletServer) Active(ctx context.Context) ([]string, error) {
	if err := k.read(ctx); err != nil {
		if k.temporary(err) == nil {
			return nil, errdefs.Unsupportedf("the kubelet does not serve its pods: %w", err)
		}
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.last.incomplete(); err != nil {
		return nil, err
	}
	return k.last.active, nil
}

// temporary returns a failure that is expected to end; nil if the server counts as absent.
func (k *kubeletServer) temporary(failure error) error {
	if k.absent() != nil {
		return nil
	}
	return failure
}

// absent returns why the server counts as absent; nil if it does not, or if its first list is not complete yet.
func (k *kubeletServer) absent() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.failure == nil || k.answered && k.now().Sub(k.failing) <= servedGrace {
		return nil
	}
	return k.failure
}

// read reads the list. Those who call meanwhile wait for a list that begins after their call. The list is not bound to the time of a
// caller: the kubelet may need more for its first one, in which it has the token reviewed.
func (k *kubeletServer) read(ctx context.Context) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	for later := false; ; later = true {
		k.mu.Lock()
		running := k.reading
		begun := running == nil || later // after the call
		if running == nil {
			running = make(chan struct{})
			k.reading = running
			go k.list(context.WithoutCancel(ctx), running, k.get)
		}
		k.mu.Unlock()
		select {
		case <-running:
		case <-ctx.Done():
			return fmt.Errorf("get %s: %w", k.url, ctx.Err())
		}
		if begun {
			return k.failed()
		}
	}
}

// failed returns the failure of the last list.
func (k *kubeletServer) failed() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.failure
}

// list stores one list.
func (k *kubeletServer) list(ctx context.Context, done chan struct{}, get func(context.Context) (served, error)) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	list, err := get(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	defer close(done)
	now := k.now()
	if err != nil && k.failure == nil {
		k.failing = now
	}
	k.reading, k.failure = nil, err
	if err == nil {
		list.at = now
		k.last, k.answered = list, true
	}
}

// get calls the kubelet.
func (k *kubeletServer) get(ctx context.Context) (list served, err error) {
	client, token, err := k.client()
	if err != nil {
		return list, err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.url, nil)
	if err != nil {
		return list, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(req)
	if err != nil {
		return list, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxMessage/2)) // without a text, the code says enough
		return list, errdefs.Unavailablef("get %s: the kubelet answers %s: %s", k.url, answer.Status,
			plain(strings.TrimSpace(string(text))))
	}
	if list, err = k.decode(&counting{r: answer.Body, most: k.most, left: k.most}); err != nil {
		return list, fmt.Errorf("get %s: %w", k.url, err)
	}
	return list, nil
}

// client returns a client that trusts the authority of the cluster and those of the file, and the token. Both are read each time, because
// they are renewed. The certificate has to be for the name of the node, so the token goes to no other program that has the port.
func (k *kubeletServer) client() (*http.Client, string, error) {
	token, err := trust.ReadFile(filepath.Join(k.accounts, "token"), maxSecret)
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	for _, path := range []string{filepath.Join(k.accounts, "ca.crt"), k.authority} {
		if path == "" {
			continue
		}
		text, err := trust.ReadFile(path, maxSecret)
		if err != nil {
			return nil, "", err
		}
		if !roots.AppendCertsFromPEM(text) {
			return nil, "", errdefs.Invalidf("%s: expected certificates in PEM", path)
		}
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ServerName: k.node},
			MaxResponseHeaderBytes: maxStatus, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, strings.TrimSpace(string(token)), nil
}

// counting is a reader of an answer that has a limit.
type counting struct {
	r          io.Reader
	most, left int
}

func (c *counting) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, errdefs.Exhaustedf("the answer is larger than %d bytes", c.most)
	}
	n, err := c.r.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}

// decode reads a list pod by pod, so that only one is in memory with all its fields.
func (k *kubeletServer) decode(r io.Reader) (list served, err error) {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return list, err
	}
	list, listed := served{pods: map[string]*typesv1.Pod{}}, false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return list, err
		}
		if key != "items" {
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return list, err
			}
			if key == "kind" && string(other) != `"PodList"` {
				return list, errdefs.Internalf("the kubelet answers with kind %.80s, expected PodList", other)
			}
			continue
		}
		listed = true
		switch start, err := d.Token(); {
		case err != nil:
			return list, err
		case start == nil: // null
			continue
		case start != json.Delim('['):
			return list, errdefs.Internalf("the kubelet's items are %v, expected a list", start)
		}
		for d.More() {
			var pod corev1.Pod
			if err := d.Decode(&pod); err != nil {
				return list, err
			}
			if err := k.add(&pod, &list); err != nil {
				return list, err
			}
		}
		if err := expect(d, json.Delim(']')); err != nil {
			return list, err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return list, err
	}
	if !listed {
		return list, errdefs.Internalf("the kubelet's answer has no items")
	}
	return list, nil
}

// expect reads a token that has to be there.
func expect(d *json.Decoder, want json.Delim) error {
	got, err := d.Token()
	if err == nil && got != want {
		err = errdefs.Internalf("the kubelet's answer has %v, expected %v", got, want)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// add adds a pod to the list. A mirror pod runs nowhere: it shows a static pod, which is in the list with the uid that the runtime has.
func (k *kubeletServer) add(pod *corev1.Pod, list *served) error {
	if on := pod.Spec.NodeName; on != "" && on != k.node {
		return errdefs.Internalf("the kubelet lists pod %.300s of node %.80q, expected those of %q", pod.Namespace+"/"+pod.Name, on, k.node)
	}
	if pod.UID == "" || pod.Annotations[workload.MirrorAnnotation] != "" {
		return nil
	}
	uid := string(pod.UID)
	if unended(pod) {
		list.active = append(list.active, uid)
	}
	if pod.Annotations[workload.SourceAnnotation] == policy.FromAPIServer {
		seen, err := time.Parse(time.RFC3339Nano, pod.Annotations[policy.SeenAnnotation])
		if err == nil && (list.seen.IsZero() || seen.Before(list.seen)) {
			list.seen = seen
		}
	}
	podspec.TakeAllocated(pod)
	spec, err := podspec.FromPod(pod, podspec.Options{})
	if err != nil {
		return fmt.Errorf("read pod %s/%s of the kubelet: %w", pod.Namespace, pod.Name, err)
	}
	list.pods[uid] = spec
	return nil
}
