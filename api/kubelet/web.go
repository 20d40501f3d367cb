package kubelet

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
	"net/url"
	"path/filepath"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/managers/errdefs"
)

const (
	// WebPort is the port of a kubelet's web server, if an address has none.
	WebPort = "10250"
	// maxServed bounds the list of a kubelet's web server in bytes.
	maxServed = 32 << 20
	// maxSecret bounds the files of a service account, and maxHeader and maxRefusal the headers of an answer and the text of a refusal.
	maxSecret, maxHeader, maxRefusal = 1 << 20, 64 << 10, 500
)

const podsPath = "/pods"

// Web is the web server of a kubelet: https://NODE:10250/pods, with the right nodes/pods.
type Web struct {
	// URL of the pods, and the name of the node, for which the certificate has to be.
	URL, Node string
	// Accounts is the directory with the token and the certificate authority of the cluster; Authority a file with further ones, or empty.
	Accounts, Authority string
	// Most bytes of a list.
	Most int
}

// NewWeb returns the web server of the kubelet at ADDRESS or ADDRESS:PORT.
func NewWeb(address, node, accounts, authority string) (*Web, error) {
	host, port := address, WebPort
	if _, err := netip.ParseAddr(address); err != nil {
		if h, p, err := net.SplitHostPort(address); err == nil {
			host, port = h, p
		}
	}
	if host == "" || port == "" || strings.ContainsAny(host, "/@[]?# ") || strings.Trim(port, "0123456789") != "" {
		return nil, errdefs.Invalidf("--kubelet %q: expected ADDRESS or ADDRESS:PORT of the node", address)
	}
	return &Web{
		URL: "https://" + net.JoinHostPort(host, port) + podsPath, Node: node, Accounts: accounts, Authority: authority, Most: maxServed,
	}, nil
}

// Port of the URL.
func (w *Web) Port() uint16 {
	u, _ := url.Parse(w.URL) // NewWeb has made it
	port, _ := strconv.ParseUint(u.Port(), 10, 16)
	return uint16(port)
}

// List calls each for every pod of the node, also for mirror pods.
func (w *Web) List(ctx context.Context, each func(*corev1.Pod) error) error {
	return w.get(ctx, w.URL, func(answer io.Reader) error { return w.decode(answer, each) })
}

// Config returns the configuration that the kubelet runs with, as a KubeletConfiguration in JSON. It needs the right nodes/configz.
func (w *Web) Config(ctx context.Context) (text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, webTime)
	defer cancel()
	err = w.get(ctx, strings.TrimSuffix(w.URL, podsPath)+"/configz", func(answer io.Reader) error {
		text, err = ParseConfigz(answer)
		return err
	})
	return text, err
}

// ParseConfigz reads what a kubelet answers to /configz: the KubeletConfiguration that it runs with. Errors are of class Invalid.
func ParseConfigz(answer io.Reader) ([]byte, error) {
	var all struct {
		Config map[string]json.RawMessage `json:"kubeletconfig"`
	}
	if err := json.NewDecoder(answer).Decode(&all); err != nil {
		return nil, errdefs.Invalidf("expected a kubelet's answer to /configz, in JSON: %w", err)
	}
	if len(all.Config) == 0 {
		return nil, errdefs.Invalidf("expected a kubelet's answer to /configz, with kubeletconfig")
	}
	// It leaves out what it is.
	all.Config["apiVersion"] = json.RawMessage(`"kubelet.config.k8s.io/v1beta1"`)
	all.Config["kind"] = json.RawMessage(`"KubeletConfiguration"`)
	return json.Marshal(all.Config)
}

// get reads an answer of the kubelet.
func (w *Web) get(ctx context.Context, url string, read func(io.Reader) error) error {
	client, token, err := w.client()
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, maxRefusal)) // without a text, the code says enough
		return errdefs.Unavailablef("get %s: the kubelet answers %s: %q", url, answer.Status, strings.TrimSpace(string(text)))
	}
	if err := read(&counting{r: answer.Body, most: w.Most, left: w.Most}); err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}
	return nil
}

// client returns a client that trusts the authority of the cluster and those of the file, and the token. Both are read each time, because
// they are renewed. The certificate has to be for the name of the node, so the token goes to no other program that has the port.
func (w *Web) client() (*http.Client, string, error) {
	token, err := trust.ReadFile(filepath.Join(w.Accounts, "token"), maxSecret)
	if err != nil {
		return nil, "", err
	}
	roots := x509.NewCertPool()
	for _, path := range []string{filepath.Join(w.Accounts, "ca.crt"), w.Authority} {
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
			TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ServerName: w.Node},
			MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
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
func (w *Web) decode(r io.Reader, each func(*corev1.Pod) error) error {
	d := json.NewDecoder(r)
	if err := expect(d, json.Delim('{')); err != nil {
		return err
	}
	listed := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		if key != "items" {
			var other json.RawMessage
			if err := d.Decode(&other); err != nil {
				return err
			}
			if key == "kind" && string(other) != `"PodList"` {
				return errdefs.Internalf("the kubelet answers with kind %.80s, expected PodList", other)
			}
			continue
		}
		listed = true
		if err := w.items(d, each); err != nil {
			return err
		}
	}
	if err := expect(d, json.Delim('}')); err != nil {
		return err
	}
	if !listed {
		return errdefs.Internalf("the kubelet's answer has no items")
	}
	return nil
}

// items reads the items of a list.
func (w *Web) items(d *json.Decoder, each func(*corev1.Pod) error) error {
	switch start, err := d.Token(); {
	case err != nil:
		return err
	case start == nil: // null
		return nil
	case start != json.Delim('['):
		return errdefs.Internalf("the kubelet's items are %v, expected a list", start)
	}
	for d.More() {
		var pod corev1.Pod
		if err := d.Decode(&pod); err != nil {
			return err
		}
		if on := pod.Spec.NodeName; on != "" && on != w.Node {
			return errdefs.Internalf("the kubelet lists pod %.300s of node %.80q, expected those of %q", pod.Namespace+"/"+pod.Name, on, w.Node)
		}
		if err := each(&pod); err != nil {
			return err
		}
	}
	return expect(d, json.Delim(']'))
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
