package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/machine"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/hack/testing/nodetest"
)

var programs = nodetest.NewPrograms(map[string]string{"berthd": "server/berthd"})

// serve runs berthctl web until the test ends, and returns its link.
func serve(t *testing.T, socket string) (link string) {
	t.Helper()
	return serveWith(t, command.Env{In: strings.NewReader(""), Dial: func(ctx context.Context, _ string) (*berth.Client, error) {
		return berth.Dial(ctx, socket, berth.Options{Attempts: 1})
	}})
}

// serveWith runs it in an environment, with further arguments.
func serveWith(t *testing.T, env command.Env, more ...string) (link string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	read, write := io.Pipe()
	done := make(chan int, 1)
	var errs bytes.Buffer
	go func() {
		env.Out, env.Err, env.Now, env.Getenv = write, &errs, time.Now, func(string) string { return "" }
		done <- run(ctx, env, append([]string{"web", "--no-browser", "--listen", "127.0.0.1:0"}, more...))
		_ = write.Close()
	}()
	t.Cleanup(func() {
		cancel()
		if code := <-done; code != command.ExitDone {
			t.Errorf("berthctl web ended with %d: %s", code, errs.String())
		}
	})
	buffer := make([]byte, 256)
	n, err := read.Read(buffer)
	if err != nil {
		t.Fatalf("%v: %s", err, errs.String())
	}
	return strings.TrimSpace(string(buffer[:n]))
}

// TestWebLogin: only who has the link gets data, and only the first one. There is no cookie, which browsers would send to
// other ports of this host.
func TestWebLogin(t *testing.T) {
	t.Parallel()
	link := serve(t, (&fake{}).start(t))
	base, key, ok := strings.Cut(link, "/#login=")
	if !ok || !strings.HasPrefix(base, "http://127.0.0.1:") {
		t.Fatalf("the link %q", link)
	}
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &http.Client{Transport: transport}
	send := func(method, path, body, session string, want int, text string) string {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Berth-Page", "1")
		r.Header.Set("X-Berth-Session", session)
		answer, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		got, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != want || !strings.Contains(string(got), text) || len(answer.Cookies()) > 0 {
			t.Errorf("%s %s: %d %s, %v, %v", method, path, answer.StatusCode, got, answer.Cookies(), err)
		}
		return string(got)
	}
	send("GET", "/", "", "", http.StatusOK, "<title>berth</title>")
	send("GET", "/api/v1/pods", "", "", http.StatusUnauthorized, "open the link")
	send("GET", "/api/v1/pods", "", key, http.StatusUnauthorized, "open the link")
	send("POST", "/api/v1/login", "wrong", "", http.StatusForbidden, "has been used or is wrong")
	send("POST", "/api/v1/login", strings.Repeat("x", 1<<20), "", http.StatusForbidden, "")
	send("GET", "/api/v1/login", key, "", http.StatusForbidden, "")
	var login struct{ Session string }
	if err := json.Unmarshal([]byte(send("POST", "/api/v1/login", key, "", http.StatusOK, "session")), &login); err != nil ||
		len(login.Session) < 32 {
		t.Fatalf("%v %q", err, login.Session)
	}
	send("GET", "/api/v1/pods", "", login.Session, http.StatusOK, `"web"`)
	send("POST", "/api/v1/login", key, "", http.StatusForbidden, "has been used")
}

// TestWebIdlePosts: another user's idle requests neither stay nor keep the person out.
func TestWebIdlePosts(t *testing.T) {
	t.Parallel()
	link := serve(t, (&fake{}).start(t))
	base, key, _ := strings.Cut(link, "/#login=")
	at := strings.TrimPrefix(base, "http://")
	var idle []net.Conn
	for range 5 * machine.WebConnections {
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// A write may fail: the connection can be closed already.
		_, _ = io.WriteString(c, "POST /api/v1/login HTTP/1.1\r\nHost: localhost\r\nX-Berth-Page: 1\r\nContent-Length: 100\r\n\r\n")
		idle = append(idle, c)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/api/v1/login", strings.NewReader(key))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Berth-Page", "1")
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	answer, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Errorf("the login of the person: %d", answer.StatusCode)
	}
	for _, c := range idle[:4*machine.WebConnections] { // a read ends, because these have been closed
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("an idle request has an answer of %d bytes", n)
		}
	}
}

func TestWebRefuses(t *testing.T) {
	t.Parallel()
	path := (&fake{}).start(t)
	for args, want := range map[string]string{
		"web --no-browser --listen 0.0.0.0:0": "expected an address of this machine only",
		"web --no-browser --listen x":         "--listen x",
	} {
		if got := invoke(t.Context(), path, "", strings.Fields(args)...); got.code == command.ExitDone || !strings.Contains(got.err, want) {
			t.Errorf("%s: %+v", args, got)
		}
	}
}

// readText is the pod of a text.
func readText(text string) (*typesv1.Pod, error) {
	pods, err := podspec.Decode(strings.NewReader(text), podspec.Options{GenerateUID: true})
	if err != nil {
		return nil, err
	}
	return pods[0], nil
}
