package bounded_test

import (
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"

	"github.com/berthd/berth/api/bounded"
)

// TestBounded: as many connections as there is room for, the next when one has gone,
// and none after the end.
func TestBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s.sock")
	inner, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	const room = 3
	l := bounded.New(inner, room)
	accepted := make(chan net.Conn)
	failed := make(chan error, 1)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				failed <- err
				return
			}
			accepted <- c
		}
	}()
	for range room + 2 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	var open []net.Conn
	for range room {
		open = append(open, <-accepted)
	}
	select {
	case <-accepted:
		t.Error("accepted more than there is room for")
	default:
	}
	for range 2 {
		if err := open[0].Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Fatal(err)
		}
	}
	open[0] = <-accepted
	select {
	case <-accepted:
		t.Error("one that was closed twice made room for two")
	default:
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("after the end: %v", err)
	}
	for _, c := range open {
		_ = c.Close()
	}
}

// TestFullServer: whoever holds all connections of a server keeps nobody out, whether he sends nothing or a part of a request. A
// call that is under way is not ended.
func TestFullServer(t *testing.T) {
	t.Parallel()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const room = 4
	begun, release := make(chan struct{}), make(chan struct{})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/long" {
			begun <- struct{}{}
			<-release
		}
		_, _ = io.WriteString(w, "ok")
	})}
	served := make(chan error, 1)
	go func() { served <- bounded.New(inner, room).Serve(s) }()
	get := func(path string) error {
		transport := &http.Transport{DisableKeepAlives: true}
		answer, err := (&http.Client{Transport: transport}).Get("http://" + inner.Addr().String() + path)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err == nil && string(text) != "ok" {
			err = errors.New(string(text))
		}
		return err
	}
	long := make(chan error, 1)
	go func() { long <- get("/long") }()
	<-begun
	for _, part := range []string{"", "GET / HTTP/1.1\r\nHost: x\r\n"} {
		for range 3 * room {
			c, err := net.Dial("tcp", inner.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, _ = io.WriteString(c, part)
		}
		for range 3 {
			if err := get("/"); err != nil {
				t.Errorf("beside connections that send %q: %v", part, err)
			}
		}
	}
	close(release)
	if err := <-long; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}
