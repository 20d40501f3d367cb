package hintproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/breaker"
)

type hintRequest = hint.Request

const slot = hinttest.SlotResource

// answers is a script that gives these answers.
func answers(list ...*typesv1.TopologyHints) func(*script) {
	return func(s *script) {
		s.hints = func(context.Context, *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
			return &hintv1.GetHintsResponse{TopologyHints: list}, nil
		}
	}
}

func options(resource string, hints ...*typesv1.TopologyHint) *typesv1.TopologyHints {
	return &typesv1.TopologyHints{Resource: resource, Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_OPTIONS, Hints: hints}
}

func on(ids ...uint32) *typesv1.TopologyHint {
	return &typesv1.TopologyHint{NumaNodes: &typesv1.NUMANodeSet{Ids: ids}}
}

// claims is a script that plans the honest claims after a change.
func claims(change func([]*typesv1.Claim) []*typesv1.Claim) func(*script) {
	return func(s *script) {
		s.plan = func(ctx context.Context, q *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
			resp, err := s.HintProviderServiceServer.Plan(ctx, q)
			if err == nil {
				resp.GetPlan().Claims = change(resp.GetPlan().GetClaims())
			}
			return resp, err
		}
	}
}

func first(change func(*typesv1.Claim)) func(*script) {
	return claims(func(c []*typesv1.Claim) []*typesv1.Claim { change(c[0]); return c })
}

// grants is a script that grants the honest grants after a change.
func grants(change func(*hintv1.ReserveResponse)) func(*script) {
	return func(s *script) {
		s.reserve = func(ctx context.Context, q *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
			resp, err := s.HintProviderServiceServer.Reserve(ctx, q)
			if err == nil {
				change(resp)
			}
			return resp, err
		}
	}
}

// silent does not answer until the caller's time is up.
func silent[Q, A any](s *script) func(context.Context, Q) (A, error) {
	return func(ctx context.Context, _ Q) (a A, err error) {
		s.timeUp()
		<-ctx.Done()
		return a, ctx.Err()
	}
}

func failing[Q, A any](context.Context, Q) (a A, err error) {
	return a, status.Error(codes.Internal, "the card's firmware has crashed")
}

var manyHints = func() []*typesv1.TopologyHint {
	var hints []*typesv1.TopologyHint
	for m := uint32(1); len(hints) <= maxHints; m++ {
		var ids []uint32
		for id := range uint32(20) {
			if m>>id&1 != 0 {
				ids = append(ids, id)
			}
		}
		hints = append(hints, on(ids...))
	}
	return hints
}()

// Whatever a provider does, nothing of it gets into the ledger, the error or the
// trace names the provider, what it has reserved is given back, and the next
// admission is served.
func TestMisbehaviour(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		wrongAnswer func(*script)
		text        string
	}{
		"node outside the machine": {answers(options(string(slot), on(0, 9))), "the machine has 0-3"},
		"node that cannot be":      {answers(options(string(slot), on(99))), "node 99: expected 0 to 63"},
		"rule outside the machine": {answers(&typesv1.TopologyHints{
			Resource: string(slot), Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
			CapacityConstraint: &typesv1.CapacityConstraint{Universe: &typesv1.NUMANodeSet{Ids: []uint32{0, 40}}},
		}), "the machine has 0-3"},
		"rule that contradicts itself": {answers(&typesv1.TopologyHints{
			Resource: string(slot), Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_CAPACITY_CONSTRAINT,
			CapacityConstraint: &typesv1.CapacityConstraint{Universe: &typesv1.NUMANodeSet{Ids: []uint32{0}},
				Must: &typesv1.NUMANodeSet{Ids: []uint32{1}}},
		}), "expected a part of the universe"},
		"no kind":          {answers(&typesv1.TopologyHints{Resource: string(slot)}), "expected NO_PREFERENCE"},
		"no options":       {answers(options(string(slot))), "expected at least one hint"},
		"twice":            {answers(options(string(slot), on(0)), options(string(slot), on(1))), "two answers"},
		"somebody else's":  {answers(options("cpu", on(0))), "not its own"},
		"long name":        {answers(options(strings.Repeat("x", 1<<20), on(0))), "not its own"},
		"too many hints":   {answers(options(string(slot), manyHints...)), "4097 hints"},
		"too many answers": {answers(make([]*typesv1.TopologyHints, maxAnswers+1)...), "65 answers"},
		"giant message": {answers(&typesv1.TopologyHints{Resource: string(slot),
			Kind: typesv1.TopologyHintsKind_TOPOLOGY_HINTS_KIND_IMPOSSIBLE, Reason: strings.Repeat("x", 5<<20)}),
			"more than 4194304 bytes"},
		"silent at hints": {func(s *script) { s.hints = silent[*hintv1.GetHintsRequest, *hintv1.GetHintsResponse](s) },
			"did not answer GetHints within 30s"},
		"fails at hints": {func(s *script) { s.hints = failing }, "the card's firmware has crashed"},
		"silent at plan": {func(s *script) { s.plan = silent[*hintv1.PlanRequest, *hintv1.PlanResponse](s) },
			"did not answer Plan within 30s"},
		"fails at plan":     {func(s *script) { s.plan = failing }, "firmware"},
		"in another's name": {first(func(c *typesv1.Claim) { c.Provider = "cpu" }), `in the name of "cpu"`},
		"for another pod":   {first(func(c *typesv1.Claim) { c.PodUid = "victim" }), "victim/c"},
		"for no container":  {first(func(c *typesv1.Claim) { c.ContainerName = "" }), "was requested"},
		"on another's":      {first(func(c *typesv1.Claim) { c.Resource = "memory" }), "has not registered for"},
		"CPUs": {first(func(c *typesv1.Claim) {
			c.Payload = &typesv1.Claim_Cpu{Cpu: &typesv1.CPUClaim{Cpus: &typesv1.CPUSet{List: "0"}}}
		}), "berthd itself allocates CPUs and memory"},
		"device on no node": {first(func(c *typesv1.Claim) {
			c.GetDevice().GetDevices()[0].NumaNodes = &typesv1.NUMANodeSet{Ids: []uint32{7}}
		}), "the machine has 0-3"},
		"device with escapes":  {first(func(c *typesv1.Claim) { c.GetDevice().GetDevices()[0].Id = "\x1b[2J" }), `a device "\x1b[2J"`},
		"device of two lines":  {first(func(c *typesv1.Claim) { c.GetDevice().GetDevices()[0].Id = "a\nb" }), "without control characters"},
		"device without an id": {first(func(c *typesv1.Claim) { c.GetDevice().GetDevices()[0].Id = "" }), "expected 1 to 512"},
		"device with a long id": {first(func(c *typesv1.Claim) {
			c.GetDevice().GetDevices()[0].Id = strings.Repeat("x", maxDeviceID+1)
		}), "expected 1 to 512"},
		"what is taken":  {first(func(c *typesv1.Claim) { c.GetDevice().GetDevices()[0].Id = "a" }), "that the ledger does not allow"},
		"the same twice": {claims(func(c []*typesv1.Claim) []*typesv1.Claim { return append(c, c[0]) }), ""},
		"large payload": {first(func(c *typesv1.Claim) { c.Payload = &typesv1.Claim_Opaque{Opaque: make([]byte, maxPayload+1)} }),
			"65537 bytes"},
		"too many claims": {claims(func([]*typesv1.Claim) []*typesv1.Claim { return make([]*typesv1.Claim, maxClaims+1) }),
			"1025 claims"},
		"silent at reserve": {func(s *script) { s.reserve = silent[*hintv1.ReserveRequest, *hintv1.ReserveResponse](s) },
			"did not answer Reserve within 30s"},
		"fails at reserve":  {func(s *script) { s.reserve = failing }, "firmware"},
		"reserves for none": {grants(func(r *hintv1.ReserveResponse) { r.Lease = durationpb.New(0) }), "reserves for 0s"},
		"grants nothing":    {grants(func(r *hintv1.ReserveResponse) { r.GetReservation().Grants = nil }), "granted 0"},
		"grants more": {grants(func(r *hintv1.ReserveResponse) {
			r.GetReservation().Grants = append(r.GetReservation().GetGrants(), nil)
		}), "granted 2"},
		"grants what no field is for": {grants(func(r *hintv1.ReserveResponse) {
			r.GetReservation().Grants[0].Edits = &typesv1.ContainerEdits{}
			r.GetReservation().Grants[0].Edits.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 99, protowire.BytesType), []byte("x")))
		}), "has fields that container edits do not have"},
		"grants what is not allowed": {grants(func(r *hintv1.ReserveResponse) {
			r.GetReservation().Grants[0].Edits = &typesv1.ContainerEdits{Mounts: []*typesv1.Mount{{ContainerPath: "/host", HostPath: "/"}}}
		}), "its grant for example.com/slot has mounts, and providers.external.allow"},
		"on what nobody requests": {first(func(c *typesv1.Claim) { c.Resource = "example.com/sofa" }),
			"example.com/sofa, which lie/c does not request"},
		"large grant": {grants(func(r *hintv1.ReserveResponse) {
			r.GetReservation().Grants[0].Edits = &typesv1.ContainerEdits{Envs: map[string]string{"a": strings.Repeat("x", maxPayload)}}
		}), "expected at most"},
		"reason of no shape": {func(s *script) { s.plan = refusing("no reason, sorry") }, "expected one word"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, required := range []bool{true, false} {
				s := newStage(t, Config{Deadline: deadline, Allowed: []Allowance{{Provider: "slots", Edits: []string{"env"}}}})
				k := slotsOf("slots")
				sc, _ := s.serveScript(k)
				s.register("slots", func(o *ledger.ExternalProvider) {
					o.Required, o.Resources = required, []string{string(slot), "example.com/sofa"}
				})
				if _, err := s.admit("before", wantingSlots("before", 1, slot)); err != nil {
					t.Fatal(err)
				}
				sc.set(row.wrongAnswer)
				before := s.ledger.View().NumPods()
				trace, err := s.admit("lie", wantingSlots("lie", 1, slot))
				if row.text == "" {
					continue // harmless: the ledger has one of equal claims
				}
				wantClaims := 0
				if sc.hints != nil {
					wantClaims = 1
				}
				s.checkMisbehaviour(row.text, required, wantClaims, trace, err)
				if required && s.ledger.View().NumPods() != before {
					t.Error("the pod was admitted")
				}
				sc.set(func(s *script) { s.hints, s.plan, s.reserve = nil, nil, nil })
				s.eventually("all is given back", func() bool {
					reserved, _ := k.usage()
					return len(reserved) == 0
				})
				if _, err := s.admit("after", wantingSlots("after", 1, slot)); err != nil {
					t.Errorf("afterwards: %v", err)
				}
			}
		})
	}
}

func refusing(reason string) func(context.Context, *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
	return func(context.Context, *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
		return &hintv1.PlanResponse{Outcome: &hintv1.PlanResponse_Refusal{Refusal: &hintv1.Refusal{Reason: reason,
			Message: "the slots are wet", Resource: string(slot)}}}, nil
	}
}

// checkMisbehaviour compares the outcome of an admission with what the mode requires.
// An advisory provider that fails at hints may still plan.
func (s *stage) checkMisbehaviour(text string, required bool, wantClaims int, trace *ledger.Trace, err error) {
	s.t.Helper()
	if required {
		fe := new(errdefs.Error)
		if !errors.As(err, &fe) || fe.Provider != "slots" || fe.Class == errdefs.Refused || !strings.Contains(err.Error(), text) ||
			!strings.Contains(err.Error(), "provider slots") {
			s.t.Errorf("required: %#v (%v), want an error of slots with %q", err, err, text)
		}
		if err != nil && len(err.Error()) > 2*maxText {
			s.t.Errorf("an error of %d bytes", len(err.Error()))
		}
		return
	}
	if err != nil {
		s.t.Errorf("advisory: %v", err)
		return
	}
	noted := slices.ContainsFunc(trace.Steps, func(st ledger.Step) bool {
		return st.Kind == ledger.StepNoted && st.Provider == "slots" && strings.Contains(st.Text, text)
	})
	if pod, _ := s.ledger.View().Pod("lie"); !noted || len(pod.Claims) != wantClaims {
		s.t.Errorf("advisory: claims %+v, steps %+v; want %d and a note with %q", pod.Claims, trace.Steps, wantClaims, text)
	}
}

// A refusal is an answer: in either mode it refuses the pod, in the provider's
// words, and is no failure.
func TestRefusal(t *testing.T) {
	t.Parallel()
	for _, required := range []bool{true, false} {
		s := newStage(t, Config{})
		sc, _ := s.serveScript(slotsOf("slots"))
		s.register("slots", func(o *ledger.ExternalProvider) { o.Required = required })
		sc.set(func(s *script) { s.plan = refusing("OutOfSlots") })
		for i := range 5 {
			_, err := s.admit("a", wantingSlots("a", 1, slot))
			reason, _ := errdefs.ReasonOf(err)
			if errdefs.ClassOf(err) != errdefs.Refused || reason != "OutOfSlots" || err.Error() != "provider slots: the slots are wet" {
				t.Fatalf("refusal %d: %v (%s)", i, err, reason)
			}
		}
		if st := s.status("slots"); st.State != Connected {
			t.Errorf("after refusals the provider is %s: %s", st.State, st.Message)
		}
	}
}

// A provider that fails again and again is left alone, tried once after a while,
// and back when it works.
func TestBreaker(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Breaker: breaker.Config{Failures: 2, Rest: 10 * time.Second, Longest: 15 * time.Second}})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots")
	n := 0
	admit := func() (asked bool, err error) {
		n++
		before := len(sc.heard())
		_, err = s.admit(fmt.Sprint("a", n), wantingSlots(fmt.Sprint("p", n), 1, slot))
		return slices.Contains(sc.heard()[before:], "hints"), err
	}
	expect := func(what string, wantAsked bool, text string) {
		t.Helper()
		asked, err := admit()
		if asked != wantAsked || (text == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: asked %v, %v; want asked %v and %q", what, asked, err, wantAsked, text)
		}
	}
	sc.set(func(s *script) { s.hints = failing })
	expect("first failure", true, "firmware")
	expect("second failure", true, "firmware")
	expect("suspended", false,
		"suspended until 1970-01-12T13:46:50Z after 2 failures in a row, the last: provider slots failed at GetHints: the card's firmware has crashed")
	if st := s.status("slots"); st.State != Suspended || !strings.Contains(st.Message, "firmware") {
		t.Errorf("status %+v", st)
	}
	s.clock.advance(10 * time.Second)
	expect("still broken", true, "firmware")
	s.clock.advance(10 * time.Second)
	expect("the second rest is longer", false, "after 3 failures")
	s.clock.advance(5 * time.Second)
	sc.set(func(s *script) { s.hints = nil })
	expect("works again", true, "")
	expect("and again", true, "")
	if st := s.status("slots"); st.State != Connected || st.Message != "" {
		t.Errorf("status %+v", st)
	}
}

// A provider that was suspended and has been started again is tried as soon as it has
// confirmed its allocations: the rest was for the process before it. If the new one
// fails too, the rest continues where it was.
func TestSuspensionEndsWithTheProcess(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Breaker: breaker.Config{Failures: 1, Rest: 10 * time.Second, Longest: time.Minute}})
	restart := func(stop func()) (*script, func()) {
		t.Helper()
		stop()
		s.eventually("it is away", func() bool { return s.status("slots").State == Away })
		sc, stop := s.serveScript(slotsOf("slots"))
		s.eventually("it is found again", func() bool { return s.status("slots").State != Away })
		return sc, stop
	}
	sc, stop := s.serveScript(slotsOf("slots"))
	s.register("slots")
	refused := func(id, text string) {
		t.Helper()
		if _, err := s.admit(id, wantingSlots(id, 1, slot)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", id, err, text)
		}
	}
	sc.set(func(s *script) { s.hints = failing })
	refused("first", "firmware")
	refused("second", "suspended until 1970-01-12T13:46:50Z after 1 failures")

	sc, stop = restart(stop)
	sc.set(func(s *script) { s.hints = failing })
	refused("as bad as before", "firmware")
	refused("left alone for longer", "suspended until 1970-01-12T13:47:00Z after 2 failures")

	restart(stop)
	if _, err := s.admit("well", wantingSlots("well", 1, slot)); err != nil {
		t.Errorf("a process that works: %v", err)
	}
	if st := s.status("slots"); st.State != Connected || st.Message != "" {
		t.Errorf("status %+v", st)
	}
}

// impatient makes a call whose caller leaves while the provider is at it.
func (s *stage) impatient(sc *script, answer func(context.Context) error) {
	s.t.Helper()
	ctx, leave := context.WithCancel(s.t.Context())
	sc.set(func(sc *script) {
		sc.hints = func(ctx context.Context, _ *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
			leave()
			return &hintv1.GetHintsResponse{}, answer(ctx)
		}
	})
	_, err := s.theBus().Hints(ctx, s.ledger.View(), hint.Request{Pod: wantingSlots("a", 1, slot)}, &ledger.Trace{})
	if errdefs.ClassOf(err) != errdefs.Canceled {
		s.t.Errorf("%v", err)
	}
}

// A caller that cancels does not count against the provider: what counts is whether it
// answers within its own deadline.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Breaker: breaker.Config{Failures: 1}})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots")
	answered := make(chan struct{})
	s.impatient(sc, func(context.Context) error { <-answered; return nil })
	if st := s.status("slots"); st.State != Connected {
		t.Errorf("status %+v", st)
	}
	close(answered)
	s.eventually("the call has ended", func() bool { return s.alone("slots") == 0 })
	if st := s.status("slots"); st.State != Connected || st.Message != "" {
		t.Errorf("status %+v", st)
	}
}

// Callers that are all less patient than the provider's deadline do not keep berthd from
// finding out that it does not answer. No more calls continue without their callers than it
// takes for that.
func TestOnlyImpatientCallers(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{Breaker: breaker.Config{Failures: 2}})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots")
	var gone atomic.Int64
	for range 3 {
		s.impatient(sc, func(ctx context.Context) error { <-ctx.Done(); gone.Add(1); return ctx.Err() })
	}
	s.eventually("the third call is given up", func() bool { return gone.Load() == 1 })
	if n, st := s.alone("slots"), s.status("slots"); n != 2 || st.State != Connected {
		t.Errorf("%d calls go on, status %+v", n, st)
	}
	s.timeUp()
	s.eventually("the calls have ended", func() bool { return s.alone("slots") == 0 })
	if st := s.status("slots"); st.State != Suspended || !strings.Contains(st.Message, "did not answer GetHints within") {
		t.Errorf("status %+v", st)
	}
}

// The provider does not see how long the caller waits: what it answers when that is over
// would count as its own failure.
func TestCallersDeadlineIsNotTheProviders(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, _ := s.serveScript(slotsOf("slots"))
	s.register("slots")
	var seen []string
	note := func(ctx context.Context, method string) {
		if _, ok := ctx.Deadline(); ok {
			seen = append(seen, method)
		}
	}
	sc.set(func(sc *script) {
		sc.plan = func(ctx context.Context, m *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
			note(ctx, "Plan")
			return sc.HintProviderServiceServer.Plan(ctx, m)
		}
		sc.reserve = func(ctx context.Context, m *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
			note(ctx, "Reserve")
			return sc.HintProviderServiceServer.Reserve(ctx, m)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	pod, bus, trace := wantingSlots("a", 1, slot), s.theBus(), &ledger.Trace{}
	draft := ledger.NewDraft(s.ledger.View())
	draft.PutPod(&ledger.Pod{Pod: *pod})
	if err := bus.Plan(ctx, draft, hint.Request{Pod: pod}, hint.Hint{Any: true}, trace); err != nil {
		t.Fatal(err)
	}
	if err := bus.Prepare(ctx, "adm", draft, hint.Request{Pod: pod}, trace); err != nil {
		t.Fatal(err)
	}
	bus.Abort(t.Context(), "adm")
	if len(seen) > 0 {
		t.Errorf("the provider sees a deadline in %q", seen)
	}
}

// Pods that want nothing of a provider do not concern it, also where it is away.
func TestUnconcernedPods(t *testing.T) {
	t.Parallel()
	s := newStage(t, Config{})
	sc, stop := s.serveScript(slotsOf("slots"))
	s.register("slots", func(o *ledger.ExternalProvider) { o.Resources = []string{string(slot)} })
	before := len(sc.heard())
	for _, pod := range []*workload.Pod{wantingSlots("zero", 0, slot), wantingSlots("other", 1, "example.com/other")} {
		if _, err := s.admit(pod.UID, pod); err != nil {
			t.Error(err)
		}
	}
	if heard := sc.heard()[before:]; len(heard) != 0 {
		t.Errorf("the provider heard %q", heard)
	}
	stop()
	s.eventually("the provider is away", func() bool { return s.status("slots").State == Away })
	if _, err := s.admit("another", wantingSlots("another", 0, slot)); err != nil {
		t.Error(err)
	}
	_, err := s.admit("concerned", wantingSlots("concerned", 1, slot))
	if errdefs.ClassOf(err) != errdefs.Unavailable || !strings.Contains(err.Error(),
		"provider slots cannot be called (GetHints): no process answers at /slots") {
		t.Errorf("%v", err)
	}
	var w hint.Waiter
	if !errors.As(err, &w) || w.Waits().Condition != ProviderAway {
		t.Errorf("%v is nothing to wait for", err)
	}
}
