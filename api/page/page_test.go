package page

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	topologyv1 "github.com/berthd/berth/api/berth/topology/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// conn is a connection to a berthd that records requests, and answers with empty messages.
type conn struct {
	mu      sync.Mutex
	methods []string
	last    proto.Message
	fail    error
	watched []*allocationv1.WatchResponse
	machine *nodev1.GetMachineResponse
}

// Invoke implements grpc.ClientConnInterface.
func (c *conn) Invoke(_ context.Context, method string, args, reply any, _ ...grpc.CallOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m, ok := reply.(*nodev1.GetMachineResponse); ok && c.machine != nil {
		proto.Merge(m, c.machine)
	}
	c.methods, c.last = append(c.methods, method), args.(proto.Message)
	return c.fail
}

// NewStream implements grpc.ClientConnInterface.
func (c *conn) NewStream(ctx context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.methods = append(c.methods, method)
	return &stream{conn: c, ctx: ctx}, nil
}

type stream struct {
	grpc.ClientStream
	*conn
	ctx context.Context
}

func (s *stream) Context() context.Context { return s.ctx }
func (s *stream) CloseSend() error         { return nil }
func (s *stream) SendMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = m.(proto.Message)
	return nil
}

func (s *stream) RecvMsg(m any) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.watched) == 0 {
		if s.fail != nil {
			return s.fail
		}
		return io.EOF
	}
	proto.Merge(m.(proto.Message), s.watched[0])
	s.watched = s.watched[1:]
	return nil
}

// request makes a request, with headers by name.
func request(t *testing.T, h http.Handler, method, path, body string, headers ...string) *http.Response {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost:8087"+path, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
			continue
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func text(t *testing.T, r *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestGuard: only this machine's names and requests of the page itself get an answer, and every
// answer has the policy.
func TestGuard(t *testing.T) {
	t.Parallel()
	h := New(Options{Conn: &conn{}})
	for _, tt := range []struct {
		path    string
		headers []string
		want    int
	}{
		{"/", nil, 200},
		{"/app.js", nil, 200},
		{"/nothing", nil, 404},
		{"/api/v1/pods", nil, 200},
		{"/api/v1/pods", []string{"Host", "127.0.0.1:1"}, 200},
		{"/api/v1/pods", []string{"Host", "[::1]:1"}, 200},
		{"/api/v1/pods", []string{"Host", "LOCALHOST"}, 200},
		{"/api/v1/pods", []string{"Host", "evil.example:8087"}, 403},
		{"/api/v1/pods", []string{"Host", "localhost.evil.example"}, 403},
		{"/api/v1/pods", []string{"Host", "192.168.0.1"}, 403},
		{"/api/v1/pods", []string{"Host", ""}, 403},
		{"/", []string{"Host", "evil.example"}, 403},
		{"/api/v1/pods", []string{"Origin", "http://localhost:8087"}, 200},
		{"/api/v1/pods", []string{"Origin", "http://localhost:1"}, 403},
		{"/api/v1/pods", []string{"Origin", "null"}, 403},
		{"/api/v1/pods", []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"/api/v1/pods", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"/", []string{"Sec-Fetch-Site", "cross-site"}, 200}, // a link of another page
	} {
		r := request(t, h, "GET", tt.path, "", tt.headers...)
		if r.StatusCode != tt.want {
			t.Errorf("%s %q: %d, want %d", tt.path, tt.headers, r.StatusCode, tt.want)
		}
		if r.Header.Get("Content-Security-Policy") != policy || r.Header.Get("Access-Control-Allow-Origin") != "" ||
			r.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s %q: headers %v", tt.path, tt.headers, r.Header)
		}
	}
}

// TestMachine: each answer has the machine of that moment, without the snapshot.
func TestMachine(t *testing.T) {
	t.Parallel()
	c := &conn{}
	h := New(Options{Conn: c})
	var answers []string
	for _, fingerprint := range []string{"one", "one", "two", "one"} {
		c.machine = &nodev1.GetMachineResponse{Fingerprint: fingerprint, SnapshotJson: []byte("{}")}
		answers = append(answers, text(t, request(t, h, "GET", "/api/v1/machine", "")))
	}
	if answers[0] != answers[1] || answers[0] != answers[3] || !strings.Contains(answers[0], `"one"`) ||
		!strings.Contains(answers[2], `"two"`) || strings.Contains(answers[0], "e30=") {
		t.Errorf("answers %q", answers)
	}
}

// TestOnlyReads: no request of any method changes anything.
func TestOnlyReads(t *testing.T) {
	t.Parallel()
	c := &conn{watched: []*allocationv1.WatchResponse{{}}}
	h := New(Options{Conn: c})
	for _, path := range []string{"machine", "state", "pods", "policy", "traces", "trace?admission=b", "events",
		"about", "attention", "history", "past?at=3", "past?at=2026-11-20T03:00:00Z"} {
		if r := request(t, h, "GET", "/api/v1/"+path, ""); r.StatusCode != 200 {
			t.Errorf("%s: %d %s", path, r.StatusCode, text(t, r))
		}
		if r := request(t, h, "POST", "/api/v1/"+path, "", trialHeader, "1"); r.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %d", path, r.StatusCode)
		}
	}
	reads := regexp.MustCompile(`/(Get\w*|List\w*|Watch|Check)$`)
	for _, m := range c.methods {
		if !reads.MatchString(m) {
			t.Errorf("a read has called %s", m)
		}
	}
	request(t, h, "POST", "/api/v1/trials/pod",
		"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, resources: {limits: {cpu: 2}}}]}", trialHeader, "1")
	if req, ok := c.last.(*admissionv1.AdmitRequest); !ok || !req.GetDryRun() ||
		req.GetPod().GetSpec().GetContainers()[0].GetResources().GetLimits()["cpu"] != "2" {
		t.Errorf("a trial of a pod has sent %v", c.last)
	}
	request(t, h, "POST", "/api/v1/trials/resize", `{"dryRun": false, "podUid": "a", "admissionId": "x"}`, trialHeader, "1")
	if req, ok := c.last.(*admissionv1.ResizeRequest); !ok || !req.GetDryRun() || req.GetPodUid() != "a" || req.GetAdmissionId() != "" {
		t.Errorf("a trial of a resize has sent %v", c.last)
	}
	h = New(Options{Conn: c}) // with other trials
	request(t, h, "POST", "/api/v1/trials/defrag?moves=3", "apiVersion: v1\nkind: Pod\nmetadata: {name: a}", trialHeader, "1")
	if req, ok := c.last.(*admissionv1.DefragmentRequest); !ok || !req.GetDryRun() || req.GetMaxMoves() != 3 {
		t.Errorf("a trial of a defragmentation has sent %v", c.last)
	}
	request(t, h, "POST", "/api/v1/trials/policy", `{"dryRun": false, "topologyPolicy": "none"}`, trialHeader, "1")
	if req, ok := c.last.(*topologyv1.SetPolicyRequest); !ok || !req.GetDryRun() || req.GetTopologyPolicy() != "none" {
		t.Errorf("a trial of a policy has sent %v", c.last)
	}
}

func TestTrialsAreBounded(t *testing.T) {
	t.Parallel()
	c := &conn{}
	h := New(Options{Conn: c})
	if r := request(t, h, "POST", "/api/v1/trials/policy", "{}"); r.StatusCode != http.StatusForbidden {
		t.Errorf("without the header: %d", r.StatusCode)
	}
	if r := request(t, h, "POST", "/api/v1/trials/policy", strings.Repeat(" ", maxBody+1), trialHeader,
		"1"); r.StatusCode != http.StatusBadRequest || !strings.Contains(text(t, r), "too long") {
		t.Errorf("a long text: %d", r.StatusCode)
	}
	if r := request(t, h, "POST", "/api/v1/trials/policy", `{"policy": 1}`, trialHeader, "1"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("an unknown field: %d", r.StatusCode)
	}
}

// TestTrialsWait: of many trials at once, some wait for their turn, and those that would wait too long are refused.
func TestTrialsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := New(Options{Conn: &conn{}})
		var refused, answered atomic.Int32
		for range 4 * trialBurst {
			go func() {
				r := request(t, h, "POST", "/api/v1/trials/policy", "{}", trialHeader, "1")
				if r.StatusCode == http.StatusTooManyRequests {
					refused.Add(1)
				} else {
					answered.Add(1)
				}
			}()
		}
		synctest.Wait()
		if n := answered.Load(); n != trialBurst {
			t.Errorf("%d trials were answered at once, want %d", n, trialBurst)
		}
		time.Sleep(2 * trialWait)
		const later = int32(trialsPerSecond * trialWait / time.Second)
		if got := answered.Load(); got != trialBurst+later || refused.Load() != 4*trialBurst-got {
			t.Errorf("%d trials were answered, want %d; %d were refused", got, trialBurst+later, refused.Load())
		}
	})
}

// TestTurns: answers are made one after the other, and one whose caller leaves does not keep its turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var most, now atomic.Int32
		s := &server{turns: make(chan struct{}, 2)}
		read := s.handle(func(ctx context.Context, _ *http.Request) (any, error) {
			for n := now.Add(1); most.Load() < n; {
				most.Store(n)
			}
			defer now.Add(-1)
			select {
			case <-ctx.Done():
				return nil, status.FromContextError(ctx.Err()).Err()
			case <-time.After(time.Second):
				return &allocationv1.ListResponse{}, nil
			}
		})
		var all sync.WaitGroup
		codes := make(chan int, 10)
		for i := range 10 {
			all.Go(func() {
				ctx, leave := context.WithCancel(t.Context())
				defer leave()
				if i == 0 {
					time.AfterFunc(time.Millisecond, leave)
				}
				w := httptest.NewRecorder()
				read(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
				codes <- w.Code
			})
		}
		all.Wait()
		close(codes)
		served := 0
		for code := range codes {
			if code == http.StatusOK {
				served++
			}
		}
		if most.Load() != 2 || served != 9 || len(s.turns) != 0 {
			t.Errorf("%d at once, %d served, %d turns are kept", most.Load(), served, len(s.turns))
		}
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		code int
		want string
	}{
		{status.Error(codes.PermissionDenied, "the role read is missing"), 403,
			`{"code":"PermissionDenied","message":"the role read is missing"}`},
		{status.Error(codes.NotFound, "<b>no pod</b>"), 404, `{"code":"NotFound","message":"\u003cb\u003eno pod\u003c/b\u003e"}`},
		{status.Error(codes.Unavailable, "gone"), 502, `{"code":"Unavailable","message":"gone"}`},
		{errors.New("odd"), 502, `{"code":"Unknown","message":"odd"}`},
	} {
		r := request(t, New(Options{Conn: &conn{fail: tt.err}}), "GET", "/api/v1/pods", "")
		if got := strings.TrimSpace(text(t, r)); r.StatusCode != tt.code || got != tt.want ||
			r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%v: %d %s", tt.err, r.StatusCode, got)
		}
	}
}

// TestEvents: events have their revisions as ids, a browser resumes from one, and one whose
// revision is too old begins again.
func TestEvents(t *testing.T) {
	t.Parallel()
	c := &conn{watched: []*allocationv1.WatchResponse{
		{Revision: 7, Initial: true, Events: []*allocationv1.Event{{Revision: 7,
			Event: &allocationv1.Event_Removed{Removed: &typesv1.PodAllocation{Uid: "a\n\ndata: forged"}}}}},
		{Revision: 8},
	}}
	r := request(t, New(Options{Conn: c}), "GET", "/api/v1/events", "", "Last-Event-ID", "6")
	got := text(t, r)
	if r.Header.Get("Content-Type") != "text/event-stream" || strings.Count(got, "\n\n") != 2 ||
		!strings.Contains(got, "id: 7\ndata: {") || !strings.Contains(got, "id: 8\n") {
		t.Errorf("%v %q", r.Header, got)
	}
	if req, ok := c.last.(*allocationv1.WatchRequest); !ok || req.GetFromRevision() != 6 {
		t.Errorf("it watches with %v", c.last)
	}
	if r := request(t, New(Options{Conn: c}), "GET", "/api/v1/events", "", "Last-Event-ID", "x"); r.StatusCode != http.StatusBadRequest {
		t.Errorf("a wrong id: %d", r.StatusCode)
	}
	if r := request(t, New(Options{Conn: &conn{fail: status.Error(codes.OutOfRange, "too old")}}), "GET", "/api/v1/events",
		""); r.StatusCode != http.StatusNoContent {
		t.Errorf("a revision that is too old: %d", r.StatusCode)
	}
}

// TestStaticFiles: no file makes markup of texts, evaluates text, or names another address.
func TestStaticFiles(t *testing.T) {
	t.Parallel()
	forbidden := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function|srcdoc|\bstyle="|\bon[a-z]+="|https?://`)
	names := 0
	err := fs.WalkDir(static, "static", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		names++
		raw, err := static.ReadFile(path)
		for line := range strings.Lines(string(raw)) {
			if found := forbidden.FindString(strings.ReplaceAll(line, "http://www.w3.org/2000/svg", "")); found != "" {
				t.Errorf("%s has %s: %s", path, found, line)
			}
		}
		return err
	})
	if err != nil || names < 4 {
		t.Errorf("%d files, %v", names, err)
	}
}

// TestParameters: what no message can have is the caller's error, and reaches no berthd.
func TestParameters(t *testing.T) {
	t.Parallel()
	c := &conn{}
	h := New(Options{Conn: c})
	for _, path := range []string{"trace?admission=%c3%28", "traces?pod=%ff", "traces?page=%ff", "pods?%ff=%ff",
		"past?at=%ff"} {
		if r := request(t, h, "GET", "/api/v1/"+path, ""); r.StatusCode != http.StatusBadRequest || !strings.Contains(text(t, r), "UTF-8") {
			t.Errorf("%s: %d", path, r.StatusCode)
		}
	}
	if len(c.methods) != 0 {
		t.Errorf("calls %q", c.methods)
	}
}

// TestSharedLogin: a shared key works more than once, and a session is the user's who has logged in.
func TestSharedLogin(t *testing.T) {
	t.Parallel()
	login := NewSharedLogin()
	h := login.Only(func(r *http.Request) string { return r.Header.Get("User") }, New(Options{Conn: &conn{}}))
	_, key, _ := strings.Cut(login.Path(), "#login=")
	sessions := map[string]string{}
	for _, user := range []string{"1", "2"} {
		var answer struct{ Session string }
		if err := json.Unmarshal([]byte(text(t, request(t, h, "POST", "/api/v1/login", key, trialHeader, "1", "User", user))),
			&answer); err != nil {
			t.Fatal(err)
		}
		sessions[user] = answer.Session
	}
	for _, tt := range []struct {
		user, session string
		want          int
	}{{"1", sessions["1"], 200}, {"2", sessions["2"], 200}, {"2", sessions["1"], 401}, {"1", "", 401}, {"1", key, 401}} {
		if r := request(t, h, "GET", "/api/v1/pods", "", "User", tt.user, sessionHeader, tt.session); r.StatusCode != tt.want {
			t.Errorf("user %s: %d, want %d", tt.user, r.StatusCode, tt.want)
		}
	}
	if r := request(t, NewSharedLogin().Only(nil, New(Options{Conn: &conn{}})), "GET", "/api/v1/pods", "", sessionHeader,
		sessions["1"]); r.StatusCode != http.StatusUnauthorized {
		t.Errorf("a session of another process: %d", r.StatusCode)
	}
}

func TestReadPod(t *testing.T) {
	t.Parallel()
	pod, _, err := readPod([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a, extra: {b: 1}}\nspec:\n  overhead: {cpu: 0.5}\n  containers: [{name: c, image: x, resources: {requests: {cpu: 1, memory: 1073741824}}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	requests := pod.GetSpec().GetContainers()[0].GetResources().GetRequests()
	if pod.GetMetadata().GetNamespace() != "default" || pod.GetMetadata().GetUid() == "" || requests["cpu"] != "1" ||
		requests["memory"] != "1073741824" || pod.GetSpec().GetOverhead()["cpu"] != "500m" {
		t.Errorf("%v", pod)
	}
	_, ignored, err := readPod([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: x}\nspec: {nodename: y}\n"))
	if err != nil || !slices.Equal(ignored, []string{`unknown field "spec.nodename"`}) {
		t.Errorf("%q, %v", ignored, err)
	}
	const twice = "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: y}\n"
	for _, bad := range []string{"", "[]", "kind: Node", "kind: [", "a: &a [*a]", "kind: Pod\nkind: Pod", twice} {
		if pod, _, err := readPod([]byte(bad)); err == nil {
			t.Errorf("%q: %v", bad, pod)
		}
	}
}

func FuzzReadPod(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: c, resources: {limits: {cpu: 1}}}]}"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if pod, _, err := readPod(text); (pod == nil) == (err == nil) {
			t.Errorf("%v, %v", pod, err)
		}
	})
}

// TestMistakes: each mistake in a pod has its line.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const pod = "kind: Pod\nmetadata: {name: a}\nspec:\n  nodename: x\n  containers:\n  - name: b\n    resources:\n      limits:\n        cpu: x\n        cpuu: 1\n"
	for message, want := range map[string]int{
		`document 1: pod default/a: pod.spec.containers[0].resources.limits["cpu"]: "x": expected a Kubernetes quantity`: 9,
		`unknown field "spec.nodename"`: 4, `unknown resource "cpuu" in "spec.containers[0].resources.limits" (expected cpu)`: 10,
		"document 1: not YAML: yaml: line 7: did not find expected key": 7, "kind is missing: expected Pod or List": 1, "something else": 0,
		"there is no spec.": 0,
	} {
		if got := mistakes([]byte(pod), message); len(got) != 1 || got[0].Line != want || got[0].Text != message {
			t.Errorf("%s: %v, want line %d", message, got, want)
		}
	}
	if got := mistakes([]byte(pod), "metadata.name: too long; or so; spec.nodename: unknown"); len(got) != 2 || got[0].Line != 2 ||
		got[0].Text != "metadata.name: too long; or so" || got[1].Line != 4 {
		t.Errorf("two mistakes: %v", got)
	}
	h := New(Options{Conn: &conn{}})
	answer := request(t, h, "POST", "/api/v1/trials/pod", "kind: Pod\nkind: Pod\n", trialHeader, "1")
	if got := text(t, answer); answer.StatusCode != http.StatusBadRequest || !strings.Contains(got, `"mistakes":[{"line":2,`) {
		t.Errorf("%d %s", answer.StatusCode, got)
	}
	h = New(Options{Conn: &conn{fail: status.Error(codes.InvalidArgument, "pod.metadata.name: too long")}})
	answer = request(t, h, "POST", "/api/v1/trials/pod", "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\n", trialHeader, "1")
	if got := text(t, answer); !strings.Contains(got, `"mistakes":[{"line":4,`) {
		t.Errorf("a mistake that berthd finds: %s", got)
	}
}

// TestAttention: what a user may not read, or a node does not have, is said, and the rest is there.
func TestAttention(t *testing.T) {
	t.Parallel()
	h := New(Options{Conn: &conn{fail: status.Error(codes.PermissionDenied, "the role admin is missing")}})
	answer := request(t, h, "GET", "/api/v1/attention", "")
	if got := text(t, answer); answer.StatusCode != http.StatusOK || strings.Count(got, "the role admin is missing") != 4 {
		t.Errorf("%d %s", answer.StatusCode, got)
	}
	h = New(Options{Conn: &conn{fail: status.Error(codes.Unavailable, "gone")}})
	if answer := request(t, h, "GET", "/api/v1/attention", ""); answer.StatusCode != http.StatusBadGateway {
		t.Errorf("without a berthd: %d", answer.StatusCode)
	}
	for _, bad := range []string{"", "x", "-1", "2026-11-20"} {
		if r := request(t, h, "GET", "/api/v1/past?at="+bad, ""); r.StatusCode != http.StatusBadRequest {
			t.Errorf("the past at %q: %d", bad, r.StatusCode)
		}
	}
}

// TestLeaveOut: events have what the page reads of pods, and not what it has of the machine.
func TestLeaveOut(t *testing.T) {
	t.Parallel()
	pod := func() *typesv1.PodAllocation {
		return &typesv1.PodAllocation{Uid: "a", Containers: []*typesv1.ContainerAllocation{{
			ContainerName: "c", Cpus: &typesv1.CPUSet{List: "1"}, Affinity: &typesv1.TopologyHint{},
			CpuLocations: []*typesv1.CPULocation{{Cpu: 1}},
		}}}
	}
	c := &conn{watched: []*allocationv1.WatchResponse{{Events: []*allocationv1.Event{
		{Event: &allocationv1.Event_Added{Added: pod()}}, {Event: &allocationv1.Event_Changed{Changed: pod()}},
	}}}}
	got := strings.ReplaceAll(text(t, request(t, New(Options{Conn: c}), "GET", "/api/v1/events", "")), " ", "")
	if strings.Count(got, `"list":"1"`) != 2 || strings.Contains(got, "cpuLocations") || strings.Contains(got, "affinity") {
		t.Error(got)
	}
}
