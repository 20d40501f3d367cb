package hintproxy

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// adviser is a provider that explains and validates.
type adviser struct {
	*keeper

	mu       sync.Mutex
	explain  []ledger.Shortage
	validate error
	asked    []string
	seen     []ledger.Claim // of the pod, when validating
	fails    bool
}

func (a *adviser) Explain(_ *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, "explain "+req.Owner().String()+" on "+nodes.String())
	return a.explain
}

func (a *adviser) Validate(_ context.Context, view *ledger.View, req hint.Request) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	pod, _ := view.Pod(req.Pod.UID)
	a.asked, a.seen = append(a.asked, "validate "+req.Owner().String()), pod.Claims
	return a.validate
}

// told returns the calls since the last time.
func (a *adviser) told() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.asked = nil }()
	return strings.Join(a.asked, ", ")
}

// mute stands before an honest server and fails to explain when the test sets that.
type mute struct {
	hintv1.HintProviderServiceServer
	a *adviser
}

func (m mute) Explain(ctx context.Context, q *hintv1.ExplainRequest) (*hintv1.ExplainResponse, error) {
	m.a.mu.Lock()
	fails := m.a.fails
	if fails {
		m.a.asked = append(m.a.asked, "explain in vain")
	}
	m.a.mu.Unlock()
	if fails {
		return nil, status.Error(codes.Internal, "no words")
	}
	return m.HintProviderServiceServer.Explain(ctx, q)
}

// advised registers an adviser.
func (s *stage) advised(change func(*ledger.ExternalProvider)) *adviser {
	s.t.Helper()
	a := &adviser{keeper: slotsOf("slots")}
	s.t.Cleanup(s.endpoints.serve("/slots", func(r grpc.ServiceRegistrar) {
		hintv1.RegisterHintProviderServiceServer(r, mute{hintserver.NewServer(a, s.clock.Now), a})
	}))
	s.register("slots", change)
	return a
}

// A provider with the capability is called for what a pod lacks; its answer is
// used as far as it can be true.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	a := s.advised(func(o *ledger.ExternalProvider) { o.Explains, o.Resources = true, []string{string(slot)} })
	if _, err := s.admit("there", wantingSlots("there", 1, slot)); err != nil {
		t.Fatal(err)
	}
	good := ledger.Shortage{
		Resource: string(slot), Nodes: "0-1", Need: 9, Free: 2, Held: 1, Withheld: 1, Why: "wet", MoreHolders: 2,
		Holders: []ledger.Owner{{Pod: "there", Container: "c"}},
	}
	change := func(f func(*ledger.Shortage)) ledger.Shortage {
		s := good
		f(&s)
		return s
	}
	a.explain = []ledger.Shortage{
		change(func(s *ledger.Shortage) { s.Resource = "cpu" }),
		change(func(s *ledger.Shortage) { s.Nodes = "0-9" }),
		change(func(s *ledger.Shortage) { s.Free = 9 }),
		change(func(s *ledger.Shortage) { s.Holders = []ledger.Owner{{Pod: "unknown"}} }),
		good,
	}
	explain := func() []ledger.Shortage {
		pod := wantingSlots("x", 9, slot)
		return s.theBus().Explain(s.ledger.View(), hint.Request{Pod: pod}, numa.Of(0, 1))
	}
	if got := explain(); !reflect.DeepEqual(got, []ledger.Shortage{good}) {
		t.Errorf("shortages %+v, want %+v", got, good)
	}
	if told := a.told(); told != "explain x/c on 0-1" {
		t.Errorf("asked %q", told)
	}
	other := wantingSlots("x", 1, "example.com/other")
	if got := s.theBus().Explain(s.ledger.View(), hint.Request{Pod: other}, numa.Of(0)); got != nil || a.told() != "" {
		t.Errorf("a pod that does not concern it lacks %+v", got)
	}

	// One that cannot is left alone for a while, for explanations only.
	a.mu.Lock()
	a.fails = true
	a.mu.Unlock()
	if got := append(explain(), explain()...); got != nil || a.told() != "explain in vain" {
		t.Errorf("shortages %+v", got)
	}
	if st := s.status("slots"); st.State != Connected || st.Message != "" {
		t.Errorf("the provider is %s: %s", st.State, st.Message)
	}
	a.mu.Lock()
	a.fails = false
	a.mu.Unlock()
	s.clock.advance(explainRest + time.Second)
	if got := explain(); len(got) != 1 {
		t.Errorf("after a rest: %+v", got)
	}
}

// A provider that has announced it sees what all have planned, and may refuse.
func TestValidate(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	a := s.advised(func(o *ledger.ExternalProvider) { o.Validates, o.Required = true, false })
	pod := wantingSlots("x", 1, slot)
	owner := ledger.Owner{Pod: "x", Container: "c"}
	claims := []ledger.Claim{
		{Owner: owner, Provider: "cpu", Resource: "cpu", Affinity: &hint.Hint{Nodes: numa.Of(1), Preferred: true},
			CPUs: &ledger.CPUs{Set: cpuset.Of(1, 2), Use: ledger.CPUExclusive}},
		{Owner: owner, Provider: "memory", Resource: "memory", Memory: []ledger.Block{{Nodes: numa.Of(0, 1), Bytes: 1 << 30}}},
		{Owner: owner, Provider: "slots", Resource: string(slot), Devices: &ledger.Devices{Devices: []ledger.Device{{ID: "a",
			Topology: true, Nodes: numa.Of(0)}}}},
	}
	draft := ledger.NewDraft(s.ledger.View())
	draft.PutPod(&ledger.Pod{Pod: *pod, AdmissionID: "x", Claims: claims})
	validate := func() (*ledger.Trace, error) {
		trace := &ledger.Trace{}
		return trace, s.theBus().Validate(t.Context(), draft.View(), hint.Request{Pod: pod, Container: -1}, trace)
	}
	if trace, err := validate(); err != nil || a.told() != "validate x" || len(trace.Steps) != 1 {
		t.Errorf("%v, steps %+v", err, trace.Steps)
	}
	if !reflect.DeepEqual(a.seen, claims) {
		t.Errorf("it saw %+v, want %+v", a.seen, claims)
	}
	a.mu.Lock()
	a.validate = errdefs.Refuse("OutOfSlots", "the slots are wet")
	a.mu.Unlock()
	_, err := validate()
	fe := new(errdefs.Error)
	if reason, _ := errdefs.ReasonOf(err); reason != "OutOfSlots" || err.Error() != "provider slots: the slots are wet" ||
		!errors.As(err, &fe) || fe.Provider != "slots" {
		t.Errorf("refused: %v", err)
	}
	a.mu.Lock()
	a.validate = errdefs.Unavailablef("no time")
	a.mu.Unlock()
	if trace, err := validate(); err != nil || !strings.Contains(trace.Steps[0].Text, "no time") {
		t.Errorf("an advisory validator that fails: %v, %+v", err, trace.Steps)
	}
}

// Without the capability a provider is not called, and no step claims that it was.
func TestUnannounced(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	a := s.advised(func(*ledger.ExternalProvider) {})
	a.explain, a.validate = []ledger.Shortage{{Resource: string(slot), Need: 1}}, errdefs.Refuse("No", "no")
	pod, trace := wantingSlots("x", 9, slot), &ledger.Trace{}
	err := s.theBus().Validate(t.Context(), s.ledger.View(), hint.Request{Pod: pod, Container: -1}, trace)
	got := s.theBus().Explain(s.ledger.View(), hint.Request{Pod: pod}, numa.Of(0))
	if err != nil || got != nil || len(trace.Steps) != 0 || a.told() != "" {
		t.Errorf("%v, %+v, %+v", err, got, trace.Steps)
	}
	// A registration that announces it is another one.
	s.register("slots", func(o *ledger.ExternalProvider) { o.Explains = true })
	if got := s.theBus().Explain(s.ledger.View(), hint.Request{Pod: pod}, numa.Of(0)); len(got) != 1 {
		t.Errorf("%+v", got)
	}
}
