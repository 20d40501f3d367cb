package cluster

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// StatusError is an answer of the API server that is no success.
type StatusError struct {
	Code int
	Text string
}

func (e *StatusError) Error() string { return fmt.Sprintf("API server: %d: %s", e.Code, e.Text) }

// Call sends a request to the API server as an administrator, and decodes the answer; a test that calls often
// cannot start kubectl each time.
func (c *Cluster) Call(ctx context.Context, method, path, body string, into any) error {
	answer, err := c.Open(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	if into == nil {
		_, err = io.Copy(io.Discard, answer)
		return err
	}
	return json.NewDecoder(answer).Decode(into)
}

// Open is Call for an answer that is read as a stream, such as a watch.
func (c *Cluster) Open(ctx context.Context, method, path, body string) (io.ReadCloser, error) {
	request, err := http.NewRequestWithContext(ctx, method, APIServer+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+c.tokens[admin])
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		return nil, &StatusError{response.StatusCode, string(text)}
	}
	return response.Body, nil
}

// HTTP returns a client that reaches the API server, without a user.
func (c *Cluster) HTTP() *http.Client { return c.client }

// newClient returns a client whose connections begin in the space. The API server has signed its certificate itself.
func newClient(s *space) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			err = s.do(func() error {
				conn, err = (&net.Dialer{}).DialContext(ctx, network, address)
				return err
			})
			return conn, err
		},
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // loopback of the test's own network
	}}
}

// Forward serves the API server on a port of the machine's loopback interface until the test ends, and writes a kubeconfig of
// the administrator for it.
func (c *Cluster) Forward(file string) error {
	listener, err := (&net.ListenConfig{}).Listen(c.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	c.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.forward(conn)
		}
	}()
	text := strings.NewReplacer("SERVER", "https://"+listener.Addr().String(), "TOKEN", c.tokens[admin]).Replace(kubeconfig)
	return os.WriteFile(file, []byte(text), 0o600)
}

// forward copies between a connection and the API server.
func (c *Cluster) forward(outside net.Conn) {
	defer func() { _ = outside.Close() }()
	var inside net.Conn
	if err := c.space.do(func() (err error) {
		inside, err = (&net.Dialer{}).DialContext(c.t.Context(), "tcp", strings.TrimPrefix(APIServer, "https://"))
		return err
	}); err != nil {
		return
	}
	go func() {
		defer func() { _ = inside.Close() }()
		_, _ = io.Copy(inside, outside)
	}()
	_, _ = io.Copy(outside, inside)
}
