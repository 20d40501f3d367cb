package main

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// TestAPIServer reads a node object from a server like the API server, and sends events.
func TestAPIServer(t *testing.T) {
	t.Parallel()
	const node = `{"metadata": {"name": "n1", "uid": "node-uid"}, "status": {"allocatable": {"cpu": "1500m", "memory": "1Gi", "hugepages-2Mi": "4Mi", "pods": "110", "example.com/gpu": "2"}}}`
	answer, code := node, 200
	var events []corev1.Event
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.Header.Get("Authorization"); got != "Bearer secret" {
			t.Errorf("the token is %q", got)
		}
		switch {
		case r.Method == "GET" && r.URL.Path == "/api/v1/nodes/n1":
			w.WriteHeader(code)
			_, _ = io.WriteString(w, answer)
		case r.Method == "POST" && r.URL.Path == "/api/v1/namespaces/default/events":
			var e corev1.Event
			if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
				t.Error(err)
			}
			events = append(events, e)
			w.WriteHeader(code)
		default:
			t.Errorf("unexpected call: %s %s", r.Method, r.URL)
		}
	}))
	t.Cleanup(server.Close)
	dir := account(t, server)
	var log strings.Builder
	now := time.Unix(1000, 0)
	a := &apiServer{base: server.URL, accounts: dir, node: "n1", log: slog.New(slog.NewTextHandler(&log, nil)),
		now: func() time.Time { return now }, taken: make(chan struct{}, 1)}
	for _, want := range []bool{true, false} {
		if changed, err := a.read(t.Context()); err != nil || changed != want {
			t.Fatalf("the first reading changes the amounts, the second does not: %v, %v", changed, err)
		}
	}
	if got := fmt.Sprint(a.counted()); got != "map[cpu:1500m hugepages-2Mi:4Mi memory:1Gi]" {
		t.Errorf("the amounts are %s", got)
	}

	excess := func(sentences ...string) {
		a.take(sentences)
		a.say(t.Context())
	}
	for range 3 {
		excess("more cpu", "more memory")
	}
	now = now.Add(eventEvery)
	excess("more cpu", "more memory")
	if len(events) != 2 || strings.Count(log.String(), "level=WARN") != 1 {
		t.Errorf("%d events, expected 2, and the log has\n%s", len(events), log.String())
	}
	if e := events[0]; e.InvolvedObject.UID != "node-uid" || e.InvolvedObject.Name != "n1" ||
		e.Message != "berth: more cpu; more memory" || e.Type != "Warning" || e.Name == events[1].Name {
		t.Errorf("the event is %+v", e)
	}
	for range 2 {
		excess()
	}
	if got := strings.Count(log.String(), "counts no more"); got != 1 {
		t.Errorf("the end of the excess is logged %d times", got)
	}
	excess(strings.Repeat("ä", 2000))
	if e := events[2]; len(e.Message) > 1024 || !utf8.ValidString(e.Message) {
		t.Errorf("a long message has %d bytes", len(e.Message))
	}

	for _, bad := range []struct {
		answer string
		code   int
		text   string
	}{
		{`{"message": "nodes \"n1\" is forbidden"}`, 403, `answers 403: nodes "n1" is forbidden`},
		{"no JSON", 500, "answers 500: Internal Server Error"},
		{"no JSON", 200, "invalid character"},
		{strings.Replace(node, "n1", "n2", 1), 200, `node "n2", expected "n1"`},
		{strings.Repeat(" ", maxNode+1), 200, "larger than"},
		{"", 302, "answers 302"},
	} {
		answer, code = bad.answer, bad.code
		if _, err := a.read(t.Context()); err == nil || !strings.Contains(err.Error(), bad.text) {
			t.Errorf("%v, without %q", err, bad.text)
		}
	}
	log.Reset()
	for _, err := range []error{io.EOF, io.ErrClosedPipe, nil, nil} {
		a.report(err)
	}
	if got := strings.Count(log.String(), "\n"); got != 2 {
		t.Errorf("an outage has %d lines:\n%s", got, log.String())
	}
}

// TestNoAPIServer: outside of a pod there is no service account.
func TestNoAPIServer(t *testing.T) {
	dir := t.TempDir()
	for _, row := range []struct{ host, accounts string }{{"", dir}, {"10.0.0.1", ""}, {"10.0.0.1", dir}} {
		t.Setenv("KUBERNETES_SERVICE_HOST", row.host)
		t.Setenv("KUBERNETES_SERVICE_PORT", "443")
		if a, err := newAPIServer(row.accounts, "n1", "", nil); a != nil || err != nil {
			t.Errorf("%+v: %v, %v", row, a, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "token"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
	if a, err := newAPIServer(dir, "n1", "", nil); err != nil || a == nil || a.base != "https://[fd00::1]:443" {
		t.Errorf("in a pod: %+v, %v", a, err)
	}
}

// TestRemoved: whether the DaemonSet was removed from the node, by what the API server answers.
func TestRemoved(t *testing.T) {
	t.Parallel()
	const deleting = `"deletionTimestamp": "2026-01-01T00:00:00Z"`
	type answers struct {
		code                   int
		space, set, node, text string
		event                  string // of the watch
	}
	const gone = `{"kind": "Status", "status": "Failure", "reason": "NotFound", "details": {"name": "%s", "kind": "%s"}, "code": 404}`
	selected := `{"spec": {"template": {"spec": {"nodeSelector": {"role": "a"}}}}}`
	for name, row := range map[string]struct {
		before, after answers
		removed       bool
		failure       string
	}{
		"an upgrade":                      {answers{}, answers{}, false, ""},
		"it is deleted in the foreground": {answers{}, answers{set: `{"metadata": {` + deleting + `}}`}, true, ""},
		"its namespace is deleted":        {answers{}, answers{space: `{"metadata": {` + deleting + `}}`}, true, ""},
		"it is gone": {answers{}, answers{code: 404, text: fmt.Sprintf(gone, "berth-node", "daemonsets")}, true,
			""},
		"its namespace is gone": {answers{}, answers{code: 404, text: fmt.Sprintf(gone, "berth-system", "namespaces")}, true,
			""},
		"another object is gone": {answers{}, answers{code: 404, text: fmt.Sprintf(gone, "other", "daemonsets")}, false,
			"answers 404"},
		"a proxy does not find the path": {answers{}, answers{code: 404, text: "404 page not found"}, false, "answers 404"},
		"the rights went first": {answers{}, answers{code: 403,
			event: `{"type": "DELETED", "object": {"metadata": {"name": "berth-node"}}}`}, true, ""},
		"the account went first": {answers{}, answers{code: 401,
			event: `{"type": "DELETED", "object": {"metadata": {"name": "berth-node"}}}`}, true, ""},
		"the account goes in the foreground": {answers{}, answers{code: 401,
			event: `{"type": "MODIFIED", "object": {"metadata": {"name": "berth-node", ` + deleting + `}}}`}, true, ""},
		"its pod was deleted by force": {answers{}, answers{code: 401}, false, "answers 401"},
		"it is there again": {answers{}, answers{code: 401,
			event: `{"type": "DELETED", "object": {"metadata": {"name": "berth-node"}}}{"type": "ADDED", "object": {"metadata": {"name": "berth-node"}}}`}, false, "answers 401"},
		"the watch has failed": {answers{}, answers{code: 401,
			event: `{"type": "ERROR", "object": {"kind": "Status", "code": 410}}`}, false, "answers 401"},
		"the rights were never there":  {answers{code: 403}, answers{code: 403}, false, "answers 403"},
		"the API server does not know": {answers{}, answers{code: 503}, false, "answers 503"},
		"the node is chosen": {answers{}, answers{set: selected,
			node: `{"metadata": {"name": "n1", "labels": {"role": "a"}}}`}, false, ""},
		"the node is not chosen any more": {answers{}, answers{set: selected,
			node: `{"metadata": {"name": "n1", "labels": {"role": "b"}}}`}, true, ""},
		"the node's labels are not known":   {answers{}, answers{set: selected, node: `{"metadata": {"name": "other"}}`}, false, ""},
		"the API server answers in no JSON": {answers{}, answers{text: "x"}, false, "invalid character"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			now := row.before
			changed := make(chan struct{})
			server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Query().Has("watch") {
					if got := r.URL.Query().Get("fieldSelector"); got != "metadata.name=berth-node" {
						t.Errorf("the watch is of %q", got)
					}
					_, _ = io.WriteString(w, `{"type": "ADDED", "object": {"metadata": {"name": "berth-node"}}}`)
					_ = http.NewResponseController(w).Flush()
					<-changed
					_, _ = io.WriteString(w, row.after.event)
					return
				}
				text := map[string]string{
					"/api/v1/namespaces/berth-system":                             now.space,
					"/apis/apps/v1/namespaces/berth-system/daemonsets/berth-node": now.set,
					"/api/v1/nodes/n1":                                            now.node,
				}[r.URL.Path]
				if now.code != 0 && !strings.HasPrefix(r.URL.Path, "/api/v1/nodes") {
					w.WriteHeader(now.code)
				}
				_, _ = io.WriteString(w, cmp.Or(now.text, text, "{}"))
			}))
			t.Cleanup(server.Close)
			a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", set: "berth-system/berth-node",
				log: slog.New(slog.DiscardHandler), shown: make(chan struct{}, 1), deletionTimeout: time.Millisecond}
			_, _ = a.chosen(t.Context())
			watched := make(chan error, 1)
			go func() { watched <- a.watchOnce(t.Context()) }()
			<-a.shown
			now = row.after
			close(changed)
			if err := <-watched; err == nil {
				t.Error("a watch ends without an error")
			}
			removed, err := a.removed(t.Context())
			if removed != row.removed || (err == nil) != (row.failure == "") || err != nil && !strings.Contains(err.Error(), row.failure) {
				t.Errorf("removed: %v, %v", removed, err)
			}
		})
	}
}

// account is the directory of a service account for a server.
func account(t *testing.T, server *httptest.Server) string {
	t.Helper()
	dir := t.TempDir()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for name, text := range map[string]string{"token": "secret\n", "ca.crt": string(authority)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestEndFlags: --release-at-end, and what it needs.
func TestEndFlags(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ release, set, text string }{
		{releaseNever, "", ""}, {releaseAlways, "", ""}, {releaseRemoved, "a/b", ""},
		{releaseRemoved, "", "--daemon-set"}, {releaseRemoved, "a/b/c", "--daemon-set"}, {"sometimes", "", "--release-at-end"},
	} {
		err := (&options{nodeOptions: nodeOptions{release: row.release, daemonSet: row.set}}).checkEnd()
		if (err == nil) != (row.text == "") || err != nil && !strings.Contains(err.Error(), row.text) {
			t.Errorf("%+v: %v", row, err)
		}
	}
	dir := t.TempDir()
	if _, err := everything(dir, dir); err == nil {
		t.Error("a machine without CPUs")
	}
	if all, err := everything("/sys/devices/system", "/sys/fs/cgroup"); err != nil || all.CPUs.IsEmpty() {
		t.Errorf("this machine: %+v, %v", all, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "cpu"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ file, text, cpus string }{
		{"cpu/online", "0-2\n", ""}, {"cpu/possible", "0-3\n", "0-2"}, {"cgroup.controllers", "", "0-3"},
	} {
		if err := os.WriteFile(filepath.Join(dir, step.file), []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if step.cpus == "" {
			continue
		}
		all, err := everything(dir, dir)
		if err != nil || all.CPUs.String() != step.cpus || all.Online.String() != "0-2" {
			t.Errorf("with %s: %+v, %v; want CPUs %s", step.file, all, err, step.cpus)
		}
	}
}

// TestEventIsSentAgain: an event that the API server refuses once is sent when it answers again.
func TestEventIsSentAgain(t *testing.T) {
	t.Parallel()
	code, sent := 429, 0
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code < 300 {
			sent++
		}
		w.WriteHeader(code)
	}))
	t.Cleanup(server.Close)
	now := time.Unix(1000, 0)
	a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return now }, taken: make(chan struct{}, 1)}
	a.take([]string{"more cpu"})
	a.say(t.Context())
	code = 201
	now = now.Add(nodeEvery)
	a.say(t.Context())
	a.say(t.Context())
	if sent != 1 {
		t.Errorf("%d events after the API server answers again", sent)
	}
}

// TestOwnerIsChecked: one answer without a namespace must not decide the owner for good.
func TestOwnerIsChecked(t *testing.T) {
	t.Parallel()
	answer, code := `{}`, 404
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/namespaces/berth-system" {
			_, _ = io.WriteString(w, answer)
			return
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(server.Close)
	a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", set: "berth-system/berth",
		log: slog.New(slog.DiscardHandler), now: time.Now}
	top := &topology{server: a}
	_, err := top.Get(t.Context())
	answer = `{"metadata": {"name": "berth-system", "uid": "u"}}`
	_, again := top.Get(t.Context())
	if err == nil || again != nil || top.owner == nil || top.owner.UID != "u" {
		t.Errorf("%v, %v: the owner is %+v", err, again, top.owner)
	}
	code = 200
	if o, err := top.Get(t.Context()); err == nil {
		t.Errorf("an answer without an object is the object %+v", o)
	}
}

// TestExcessIsReadAgain: before it is said that the scheduler counts more than pods can have, the node object is read again, because the
// kubelet may have been started with other reservations since the last reading.
func TestExcessIsReadAgain(t *testing.T) {
	t.Parallel()
	s, a, _ := newNodeServer(t)
	s.node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("3")} // of the kubelet's present start
	ctx, stop := context.WithCancel(t.Context())
	changed := make(chan struct{}, 10)
	done := make(chan struct{})
	a.take([]string{"the scheduler counts 4 of cpu as allocatable, and pods can have 3"})
	go func() {
		defer close(done)
		a.watch(ctx, func() {
			a.take(nil) // berthd compares again
			changed <- struct{}{}
		})
	}()
	<-changed
	stop()
	<-done
	if len(s.events) != 0 {
		t.Errorf("an event from amounts of before: %+v", s.events)
	}
}
