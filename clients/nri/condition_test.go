package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/errdefs"
)

// nodeServer plays the API server for one node.
type nodeServer struct {
	t      *testing.T
	node   corev1.Node
	events []corev1.Event
	writes int
	away   bool
}

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.away {
		http.Error(w, "away", http.StatusServiceUnavailable)
		return
	}
	switch {
	case r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes/n1":
		_ = json.NewEncoder(w).Encode(s.node)
	case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/n1/status" && r.URL.Query().Get("fieldManager") == fieldManager:
		var body corev1.Node
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil || body.Name != "n1" || body.Kind != "Node" {
			s.t.Errorf("%v: %+v", err, body)
		}
		s.node.Status.Conditions, s.writes = body.Status.Conditions, s.writes+1
		_, _ = w.Write([]byte("{}"))
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/events"):
		var e corev1.Event
		if err := json.NewDecoder(r.Body).Decode(&e); err != nil || r.URL.Path != "/api/v1/namespaces/"+e.Namespace+"/events" {
			s.t.Errorf("%v: %s: %+v", err, r.URL.Path, e)
		}
		s.events = append(s.events, e)
		_, _ = w.Write([]byte("{}"))
	default:
		s.t.Errorf("unexpected call: %s %s", r.Method, r.URL)
	}
}

// newNodeServer returns a server and a client of it with a clock that the test moves.
func newNodeServer(t *testing.T) (*nodeServer, *apiServer, *time.Time) {
	t.Helper()
	s := &nodeServer{t: t, node: corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}}}
	server := httptest.NewTLSServer(s)
	t.Cleanup(server.Close)
	now := time.Unix(100_000, 0)
	a := &apiServer{base: server.URL, accounts: account(t, server), node: "n1", log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return now }, taken: make(chan struct{}, 1)}
	if _, err := a.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s, a, &now
}

// TestCondition: the condition follows the state of the node, has a heartbeat, keeps the time of its last change, also over a restart,
// and does not change for what is over at once. Each change has one event.
func TestCondition(t *testing.T) {
	t.Parallel()
	s, a, now := newNodeServer(t)
	state := nodeState{reasonNeverReady, "berthd has never been ready: no reservation\x1b[0m\nand more"}
	c := &condition{server: a, look: func() nodeState { return state }, since: *now}
	after := func(d time.Duration) *corev1.NodeCondition {
		t.Helper()
		for end := now.Add(d); now.Before(end); *now = now.Add(conditionLook) {
			c.step(t.Context())
		}
		c.step(t.Context())
		if len(s.node.Status.Conditions) == 0 {
			return nil
		}
		return &s.node.Status.Conditions[0]
	}
	if have := after(conditionSettle - 2*conditionLook); have != nil {
		t.Errorf("a start that has just begun is a condition: %+v", have)
	}
	have := after(conditionSettle)
	if have == nil || have.Type != "BerthReady" || have.Status != corev1.ConditionFalse || have.Reason != reasonNeverReady ||
		have.Message != "berthd has never been ready: no reservation [0m and more" {
		t.Fatalf("the condition is %+v", have)
	}
	changed := have.LastTransitionTime
	if have = after(conditionHeartbeat); have.LastTransitionTime != changed || have.LastHeartbeatTime == changed || s.writes != 2 {
		t.Errorf("%d writes, expected a heartbeat after %s: %+v", s.writes, conditionHeartbeat, have)
	}
	state = nodeState{reasonReady, "berth places the pods of this node"}
	if have = after(0); have.Status != corev1.ConditionTrue || have.LastTransitionTime == changed {
		t.Errorf("the condition is %+v", have)
	}
	state = nodeState{reasonBerthdNotReady, "away"}
	after(conditionSettle / 2)
	state = nodeState{reasonReady, "berth places the pods of this node"}
	if have = after(conditionSettle); have.Status != corev1.ConditionTrue || s.writes != 3 {
		t.Errorf("a restart is a change of the condition: %+v", have)
	}
	if len(s.events) != 2 || s.events[0].Reason != "BerthNeverReady" || s.events[0].Type != "Warning" ||
		s.events[1].Reason != "BerthReady" || s.events[1].Type != "Normal" ||
		s.events[0].Namespace != "default" || s.events[0].InvolvedObject.UID != "node-uid" {
		t.Errorf("the events are %+v", s.events)
	}

	s.away = true
	state = nodeState{reasonNoRuntime, "away"}
	after(3 * conditionSettle)
	s.away = false
	if have = after(conditionRetry); have.Reason != reasonNoRuntime {
		t.Errorf("after the API server was away: %+v", have)
	}
	since, writes := have.LastTransitionTime, s.writes
	*now = now.Add(time.Minute)
	next := &condition{server: a, look: func() nodeState { return state }, since: *now}
	if err := next.adopt(t.Context()); err != nil {
		t.Fatal(err)
	}
	next.step(t.Context())
	if have = &s.node.Status.Conditions[0]; !have.LastTransitionTime.Time.Equal(since.Time) || s.writes != writes+1 || len(s.events) != 3 {
		t.Errorf("after a restart in the same state: %d writes, %d events, %+v", s.writes-writes, len(s.events), have)
	}
	if err := next.remove(t.Context()); err != nil || len(s.node.Status.Conditions) != 0 {
		t.Errorf("after the removal: %v, %+v", err, s.node.Status.Conditions)
	}
}

// TestState: the most important reason is said, with what the checks before the start have found.
func TestState(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"good": "passed: all\n", "bad": "failed: cpu.policy: expected one of none, static\n",
		"empty": ""} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	client, err := berth.Dial(t.Context(), filepath.Join(dir, "b.sock"), berth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	established := false
	p := policy.New(policy.Config{Client: client, Log: slog.New(slog.DiscardHandler), Established: func() bool { return established }})
	o := &options{runtimeOptions: runtimeOptions{socket: "/run/nri.sock"}, failure: refuse, passNamespaces: []string{"kube-system"},
		checkReports: []string{dir + "/none", dir + "/good", dir + "/bad", dir + "/empty"}}
	runtime := &connection{}
	expect := func(reason, text string) {
		t.Helper()
		if got := o.state(p, runtime, nil); got.reason != reason || !strings.Contains(got.message, text) {
			t.Errorf("the state is %+v, want %s with %q", got, reason, text)
		}
	}
	expect(reasonNoRuntime, "/run/nri.sock")
	runtime.up.Store(true)
	expect(reasonNeverReady, "so pods start without a place: berthd at")
	expect(reasonNeverReady, "; failed: cpu.policy: expected one of none, static")
	established = true
	expect(reasonBerthdNotReady, "no container starts, except in kube-system")
	o.failure = pass
	expect(reasonBerthdNotReady, "containers start on the shared CPUs")
	p.SetStandby(errdefs.Preconditionf("the kubelet's CPU manager has the policy static"))
	expect(reasonKubeletStatic, "policy static; pods start as without berth, and none is moved")
}

// TestPodEvents: events of pods are in the namespace of the pod, and too many are dropped.
func TestPodEvents(t *testing.T) {
	t.Parallel()
	s, a, _ := newNodeServer(t)
	p := newPodEvents(a)
	for range maxPodEvents + 1 {
		p.tell(policy.PodEvent{Namespace: "team", Name: "web", UID: "u", Reason: policy.ReasonNotPlaced,
			Message: "container main is on the shared CPUs", Warning: true})
	}
	if len(p.waiting) != maxPodEvents {
		t.Errorf("%d events wait", len(p.waiting))
	}
	e := <-p.waiting
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: e.Namespace, Name: e.Name, UID: "u"}
	if err := a.send(t.Context(), event{about, e.Reason, e.Message, e.Warning}, a.now()); err != nil {
		t.Fatal(err)
	}
	if got := s.events[0]; got.Namespace != "team" || got.InvolvedObject != about ||
		got.Message != "berth: container main is on the shared CPUs" || got.Type != "Warning" {
		t.Errorf("the event is %+v", got)
	}
}

// TestSourceIsNamed: a node is ready in several ways. Each change of the way is written and is an event, also the first one if the
// specifications do not come from the Pods API.
func TestSourceIsNamed(t *testing.T) {
	t.Parallel()
	s, a, now := newNodeServer(t)
	var state nodeState
	c := &condition{server: a, look: func() nodeState { return state }, since: *now}
	var changed time.Time
	for i, next := range []nodeState{
		{reasonKubeletServer, "specifications come from https://10.0.0.1:10250/pods"}, {reasonByContainer, "container by container: 403"},
		{reasonReady, "placed"},
	} {
		before := s.writes
		if state = next; i > 0 { // a kubelet that restarts has no socket for a moment
			for range conditionSettle / conditionLook {
				*now = now.Add(conditionLook)
				c.step(t.Context())
			}
			if s.writes != before {
				t.Errorf("%+v is written at once", next)
			}
		}
		*now = now.Add(conditionLook)
		for range 3 {
			c.step(t.Context())
		}
		have := s.node.Status.Conditions[0]
		if have.Status != corev1.ConditionTrue || have.Reason != next.reason || have.Message != next.message || s.writes != i+1 {
			t.Errorf("%d writes, and the condition is %+v, want %+v", s.writes, have, next)
		}
		if len(s.events) != i+1 || s.events[i].Reason != "Berth"+next.reason || s.events[i].Type != corev1.EventTypeNormal ||
			s.events[i].Message != "berth: "+next.message {
			t.Errorf("the events are %+v", s.events)
		}
		if i == 0 {
			changed = have.LastTransitionTime.Time
		} else if !have.LastTransitionTime.Time.Equal(changed) {
			t.Error("another way to be ready counts as a change of the status")
		}
	}
}
