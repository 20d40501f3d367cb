package hint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// actor is a provider with settable methods that do nothing by default.
type actor struct {
	name     string
	hints    func(context.Context) ([]hint.ResourceAnswer, error)
	plan     func(context.Context, hint.Request) ([]ledger.Claim, error)
	prepare  func(context.Context, []ledger.Claim) ([]ledger.Claim, error)
	validate func(context.Context) error
	heard    *[]string
}

func (a *actor) Name() string { return a.name }

func (a *actor) Hints(ctx context.Context, _ *ledger.View, _ hint.Request) ([]hint.ResourceAnswer, error) {
	if a.hints == nil {
		return nil, nil
	}
	return a.hints(ctx)
}

func (a *actor) Plan(ctx context.Context, _ *ledger.View, req hint.Request, _ hint.Hint) ([]ledger.Claim, error) {
	if a.plan == nil {
		return nil, nil
	}
	return a.plan(ctx, req)
}

func (a *actor) Prepare(ctx context.Context, _ string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	if a.prepare == nil {
		return claims, nil
	}
	return a.prepare(ctx, claims)
}

func (a *actor) Validate(ctx context.Context, _ *ledger.View, _ hint.Request) error {
	if a.validate == nil {
		return nil
	}
	return a.validate(ctx)
}

func (a *actor) Abort(_ context.Context, id string) { *a.heard = append(*a.heard, a.name+" abort "+id) }

func (a *actor) Released(_ context.Context, claims []ledger.Claim) {
	for _, c := range claims {
		*a.heard = append(*a.heard, a.name+" released "+c.Resource)
	}
}

// Finished ends with the start of the container that the actor is called after.
func (a *actor) Finished(pod *ledger.Pod, starting string) (out []ledger.Claim) {
	for _, c := range pod.Claims {
		if c.Provider == a.name && a.name == starting {
			out = append(out, c)
		}
	}
	return out
}

// opaque is a plan of one claim with a description of the provider's own.
func opaque(provider string) func(context.Context, hint.Request) ([]ledger.Claim, error) {
	return func(_ context.Context, req hint.Request) ([]ledger.Claim, error) {
		return []ledger.Claim{{Owner: req.Owner(), Provider: provider, Resource: "r", Opaque: []byte("planned")}}, nil
	}
}

// expired is a WithTimeout whose time is always up.
func expired(ctx context.Context, _ time.Duration) (context.Context, context.CancelFunc) {
	return context.WithDeadline(ctx, time.Unix(0, 0))
}

// stage is a bus with a draft that holds a pod of one container.
type stage struct {
	bus   *hint.Bus
	draft *ledger.Draft
	req   hint.Request
	trace ledger.Trace
}

func newStage(t *testing.T, entries ...hint.Entry) *stage {
	t.Helper()
	bus, err := hint.NewBus(nil, entries, expired)
	if err != nil {
		t.Fatal(err)
	}
	record := ledgertest.Pod("pod", "c")
	s := &stage{bus: bus, draft: ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n4c1t")}).View())}
	s.draft.PutPod(record)
	s.req = hint.Request{Pod: &record.Pod, Container: 0}
	return s
}

// texts are the texts of the trace's steps of a kind.
func (s *stage) texts(kind ledger.StepKind) (texts []string) {
	for _, step := range s.trace.Steps {
		if step.Kind == kind {
			texts = append(texts, step.Provider+": "+step.Text)
		}
	}
	return texts
}

func TestOrder(t *testing.T) {
	t.Parallel()
	entry := func(name string, index int) hint.Entry {
		return hint.Entry{Provider: &actor{name: name}, Mode: hint.Required, Index: index}
	}
	builtIn := []hint.Entry{entry("cpu", 0), entry("memory", 0), entry("device", 0)}
	for _, row := range []struct {
		name    string
		order   []string
		entries []hint.Entry
		want    []string
		err     string
	}{
		{"default", nil, builtIn, []string{"device", "cpu", "memory"}, ""},
		{"default, one missing", nil, builtIn[:2], []string{"cpu", "memory"}, ""},
		{"named", []string{"memory", "cpu", "device"}, builtIn, []string{"memory", "cpu", "device"}, ""},
		{"others by index and name", nil, []hint.Entry{entry("b", 1), entry("a", 1), entry("z", 0), entry("cpu", 9)},
			[]string{"cpu", "z", "a", "b"}, ""},
		{"no order", []string{}, builtIn, []string{"cpu", "device", "memory"}, ""},
		{"named twice", []string{"cpu", "cpu"}, builtIn, nil, `names "cpu" twice`},
		{"not there", []string{"cpu", "disk"}, builtIn, nil, `names "disk", which does not exist`},
		{"one name, two providers", nil, []hint.Entry{entry("a", 0), entry("a", 1)}, nil, `two hint providers are called "a"`},
		{"no name", nil, []hint.Entry{entry("", 0)}, nil, "has no name"},
		{"no mode", nil, []hint.Entry{{Provider: &actor{name: "a"}}}, nil, `mode ""`},
		{"no clock", nil, []hint.Entry{{Provider: &actor{name: "a"}, Mode: hint.Required, Deadline: 1}}, nil, "cannot be kept"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			bus, err := hint.NewBus(row.order, row.entries, nil)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) || errdefs.ClassOf(err) != errdefs.Invalid {
					t.Fatalf("got %v, want %s", err, row.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range bus.Entries() {
				got = append(got, e.Provider.Name())
			}
			if !slices.Equal(got, row.want) {
				t.Errorf("got %q, want %q", got, row.want)
			}
		})
	}
}

func TestHintsAreTraced(t *testing.T) {
	t.Parallel()
	s := newStage(t,
		hint.Entry{Provider: &hinttest.Slots{At: map[string]int{"a": 0, "b": 1}}, Mode: hint.Required},
		hint.Entry{Provider: &actor{name: "without"}, Mode: hint.Required},
	)
	s.req.Pod.Containers[0].Requests = workload.Quantities{hinttest.SlotResource: 1}
	replies, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace)
	if err != nil {
		t.Fatal(err)
	}
	if len(replies) != 2 || replies[0].Provider != "slots" || len(replies[0].Answers) != 1 || len(replies[1].Answers) != 0 {
		t.Errorf("replies %+v", replies)
	}
	if len(s.trace.Steps) != 1 {
		t.Fatalf("trace %+v, want one step", s.trace.Steps)
	}
	step := s.trace.Steps[0]
	if step.Kind != ledger.StepAnswered || step.Answer != "options" || len(step.Hints) != 3 || step.Container != "c" {
		t.Errorf("step %+v", step)
	}
}

// named is a member without any part, guard one that only validates.
type named struct{}

func (named) Name() string { return "guard" }

type guard struct{ named }

func (guard) Validate(context.Context, *ledger.View, hint.Request) error {
	return errdefs.Refuse("Full", "full")
}

// TestMemberThatOnlyValidates: it is not called for hints or plans, and its refusal
// counts.
func TestMemberThatOnlyValidates(t *testing.T) {
	t.Parallel()
	a := &actor{name: "a", plan: opaque("a")}
	s := newStage(t, hint.Entry{Provider: guard{}, Mode: hint.Required}, hint.Entry{Provider: a, Mode: hint.Required})
	replies, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace)
	if err != nil || len(replies) != 1 || replies[0].Provider != "a" {
		t.Errorf("replies %+v, %v", replies, err)
	}
	if err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
		t.Error(err)
	}
	if err := s.bus.Prepare(t.Context(), "id", s.draft, s.req, &s.trace); err != nil {
		t.Error(err)
	}
	err = s.bus.Validate(t.Context(), s.draft.View(), s.req, &s.trace)
	if reason, _ := errdefs.ReasonOf(err); reason != "Full" || !strings.Contains(err.Error(), "full") {
		t.Errorf("validation: %v", err)
	}
	if _, err := hint.NewBus(nil, []hint.Entry{{Provider: named{}, Mode: hint.Required}}, nil); err == nil {
		t.Error("a member without any part is on the bus")
	}
}

// TestRulesAreTraced: a trace lists the sets of a rule about few nodes. The text of another rule
// has every need, and mentions the sets beside it.
func TestRulesAreTraced(t *testing.T) {
	t.Parallel()
	rule := &hint.Rule{Universe: numa.Of(0, 2, 3, 4, 5, 6), Must: numa.Of(0), Need: 3 << 30, PreferredSize: 2}
	rule.Also = []hint.Threshold{{Resource: "hugepages-1Gi", Need: 1 << 30}, {Resource: "example.com/x", Need: 7}}
	few := &hint.Rule{Universe: numa.Of(0, 7), Must: numa.Of(0), PreferredSize: 2}
	beside := []hint.Hint{{Nodes: numa.Of(1)}}
	a := &actor{name: "a", hints: func(context.Context) ([]hint.ResourceAnswer, error) {
		return []hint.ResourceAnswer{
			{Resource: "memory", Answer: hint.Answer{Kind: hint.ByRule, Rule: rule, Hints: beside}},
			{Resource: "other", Answer: hint.Answer{Kind: hint.ByRule, Rule: few, Hints: beside}},
		}, nil
	}}
	s := newStage(t, hint.Entry{Provider: a, Mode: hint.Required})
	s.draft = ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s8n1c")}).View())
	if _, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace); err != nil || len(s.trace.Steps) != 2 {
		t.Fatalf("%v, trace %+v", err, s.trace)
	}
	listed := []hint.Hint{{Nodes: numa.Of(0)}, {Nodes: numa.Of(1)}, {Nodes: numa.Of(0, 7), Preferred: true}}
	if step := s.trace.Steps[1]; step.Answer != "options" || step.Text != "" || !slices.Equal(step.Hints, listed) {
		t.Errorf("step %+v, want %v", step, listed)
	}
	step := s.trace.Steps[0]
	want := "any of the nodes 0,2-6 that have 3Gi and 1Gi of hugepages-1Gi and 7 of example.com/x together, 0 among them; " +
		"2 nodes are preferred; or one of these sets"
	if step.Answer != "rule" || step.Text != want || len(step.Hints) != 1 {
		t.Errorf("step %+v, want %q", step, want)
	}
}

// TestTracesAreShort: a trace lists the sets of a rule about four nodes, of which it shows
// eight, and describes a rule about five.
func TestTracesAreShort(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		nodes          numa.Mask
		answer         string
		shown, omitted int
	}{
		{numa.Of(0, 1, 2), "options", 7, 0},
		{numa.Of(0, 1, 2, 3), "options", 8, 7},
		{numa.Of(0, 1, 2, 3, 4), "rule", 0, 0},
	} {
		a := &actor{name: "a", hints: func(context.Context) ([]hint.ResourceAnswer, error) {
			return []hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.ByRule,
				Rule: &hint.Rule{Universe: row.nodes, PreferredSize: 1}}}}, nil
		}}
		s := newStage(t, hint.Entry{Provider: a, Mode: hint.Required})
		s.draft = ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s8n1c")}).View())
		if _, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace); err != nil || len(s.trace.Steps) != 1 {
			t.Fatalf("%v, trace %+v", err, s.trace)
		}
		step := s.trace.Steps[0]
		if step.Answer != row.answer || len(step.Hints) != row.shown || step.Omitted != row.omitted ||
			(step.Text != "") != (row.answer == "rule") {
			t.Errorf("%v: step %+v", row.nodes, step)
		}
	}
}

// TestFailures tries every call with every way to fail.
func TestFailures(t *testing.T) {
	t.Parallel()
	plain := errors.New("out of order")
	refusal := errdefs.Refuse(errdefs.UnexpectedAdmissionError, "no")
	late := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	type failure struct {
		name string
		fail func(context.Context) error
		// deadline is set on the entry.
		deadline time.Duration
		class    errdefs.Class
		text     string
	}
	failures := []failure{
		{"plain", func(context.Context) error { return plain }, 0, errdefs.Internal, "out of order"},
		{"typed", func(context.Context) error { return errdefs.Unavailablef("away") }, 0, errdefs.Unavailable, "away"},
		{"refusal", func(context.Context) error { return refusal }, 0, errdefs.Refused, "no"},
		{"deadline", late, time.Second, errdefs.Deadline, "provider bad did not answer within 1s"},
	}
	calls := map[string]struct {
		set func(*actor, func(context.Context) error)
		run func(context.Context, *stage) error
	}{
		"hints": {
			func(a *actor, fail func(context.Context) error) {
				a.hints = func(ctx context.Context) ([]hint.ResourceAnswer, error) { return nil, fail(ctx) }
			},
			func(ctx context.Context, s *stage) error {
				_, err := s.bus.Hints(ctx, s.draft.View(), s.req, &s.trace)
				return err
			},
		},
		"plan": {
			func(a *actor, fail func(context.Context) error) {
				a.plan = func(ctx context.Context, _ hint.Request) ([]ledger.Claim, error) { return nil, fail(ctx) }
			},
			func(ctx context.Context, s *stage) error {
				return s.bus.Plan(ctx, s.draft, s.req, hint.Hint{Any: true}, &s.trace)
			},
		},
		"prepare": {
			func(a *actor, fail func(context.Context) error) {
				a.plan = opaque("bad")
				a.prepare = func(ctx context.Context, _ []ledger.Claim) ([]ledger.Claim, error) { return nil, fail(ctx) }
			},
			func(ctx context.Context, s *stage) error {
				if err := s.bus.Plan(ctx, s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
					return err
				}
				return s.bus.Prepare(ctx, "id", s.draft, s.req, &s.trace)
			},
		},
		"validate": {
			func(a *actor, fail func(context.Context) error) { a.validate = fail },
			func(ctx context.Context, s *stage) error {
				return s.bus.Validate(ctx, s.draft.View(), s.req, &s.trace)
			},
		},
	}
	for call, c := range calls {
		for _, f := range failures {
			for _, mode := range []hint.Mode{hint.Required, hint.Advisory} {
				t.Run(call+"/"+f.name+"/"+string(mode), func(t *testing.T) {
					t.Parallel()
					a := &actor{name: "bad", heard: new([]string)}
					c.set(a, f.fail)
					s := newStage(t, hint.Entry{Provider: a, Mode: mode, Deadline: f.deadline})
					err := c.run(t.Context(), s)
					if mode == hint.Advisory && f.class != errdefs.Refused {
						notes := s.texts(ledger.StepNoted)
						if err != nil || len(notes) != 1 || !strings.Contains(notes[0], f.text) || !strings.HasPrefix(notes[0], "bad: ") {
							t.Errorf("got %v with notes %q", err, notes)
						}
						if pod, _ := s.draft.View().Pod("pod"); len(pod.Claims) != 0 {
							t.Errorf("claims %+v are left", pod.Claims)
						}
						return
					}
					var typed *errdefs.Error
					if !errors.As(err, &typed) || typed.Provider != "bad" || typed.Class != f.class ||
						!strings.HasPrefix(err.Error(), f.text) {
						t.Errorf("got %#v, want class %s of provider bad: %s", err, f.class, f.text)
					}
					if f.name == "refusal" {
						if reason, _ := errdefs.ReasonOf(err); reason != errdefs.UnexpectedAdmissionError {
							t.Errorf("reason %q", reason)
						}
					}
				})
			}
		}
	}
}

// A caller that went away is not a failing provider, even of an advisory one.
func TestCallerGone(t *testing.T) {
	t.Parallel()
	a := &actor{name: "slow", hints: func(ctx context.Context) ([]hint.ResourceAnswer, error) { <-ctx.Done(); return nil, ctx.Err() }}
	s := newStage(t, hint.Entry{Provider: a, Mode: hint.Advisory})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.bus.Hints(ctx, s.draft.View(), s.req, &s.trace)
	if !errors.Is(err, context.Canceled) || errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("got %v", err)
	}
}

func TestLies(t *testing.T) {
	t.Parallel()
	lyingHints := &actor{name: "liar", hints: func(context.Context) ([]hint.ResourceAnswer, error) {
		return []hint.ResourceAnswer{{Resource: "r", Answer: hint.Answer{Kind: hint.Options, Hints: []hint.Hint{{Nodes: numa.Of(5)}}}}}, nil
	}}
	s := newStage(t, hint.Entry{Provider: lyingHints, Mode: hint.Required})
	_, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace)
	wantLie(t, err, "r")

	s = newStage(t, hint.Entry{Provider: lyingHints, Mode: hint.Advisory})
	replies, err := s.bus.Hints(t.Context(), s.draft.View(), s.req, &s.trace)
	if err != nil || len(replies) != 1 || len(replies[0].Answers) != 0 {
		t.Errorf("an advisory liar: %+v, %v", replies, err)
	}

	reserved := &actor{name: "liar", plan: func(_ context.Context, req hint.Request) ([]ledger.Claim, error) {
		c := ledgertest.Exclusive("c", "9")
		c.Owner, c.Provider = req.Owner(), "liar"
		return []ledger.Claim{c}, nil
	}}
	s = newStage(t, hint.Entry{Provider: reserved, Mode: hint.Required})
	wantLie(t, s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace), "cpu")

	swapped := &actor{name: "liar", plan: opaque("liar"), prepare: func(_ context.Context, c []ledger.Claim) ([]ledger.Claim, error) {
		c = slices.Clone(c)
		c[0].Owner.Container = "x"
		return c, nil
	}}
	s = newStage(t, hint.Entry{Provider: swapped, Mode: hint.Required})
	if err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
		t.Fatal(err)
	}
	wantLie(t, s.bus.Prepare(t.Context(), "id", s.draft, s.req, &s.trace), "r")
}

func wantLie(t *testing.T, err error, resource string) {
	t.Helper()
	var typed *errdefs.Error
	if !errors.As(err, &typed) || typed.Class != errdefs.Corrupt || typed.Provider != "liar" || typed.Resource != resource {
		t.Errorf("got %#v, want a wrong answer of liar about %s", err, resource)
	}
}

func TestPlanPrepareAbortRelease(t *testing.T) {
	t.Parallel()
	var heard []string
	prepare := func(_ context.Context, claims []ledger.Claim) ([]ledger.Claim, error) {
		claims = slices.Clone(claims)
		claims[0].Opaque = []byte("prepared")
		return claims, nil
	}
	s := newStage(t,
		hint.Entry{Provider: &actor{name: "b", plan: opaque("b"), heard: &heard}, Mode: hint.Required},
		hint.Entry{Provider: &actor{name: "a", plan: opaque("a"), prepare: prepare, heard: &heard}, Mode: hint.Advisory},
	)
	if err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
		t.Fatal(err)
	}
	if err := s.bus.Prepare(t.Context(), "id", s.draft, s.req, &s.trace); err != nil {
		t.Fatal(err)
	}
	pod, _ := s.draft.View().Pod("pod")
	if len(pod.Claims) != 2 || string(pod.Claims[0].Opaque) != "prepared" || string(pod.Claims[1].Opaque) != "planned" {
		t.Errorf("claims %+v", pod.Claims)
	}
	var steps []string
	for _, step := range s.trace.Steps {
		steps = append(steps, string(step.Kind)+" "+step.Provider)
	}
	if want := []string{"planned a", "planned b", "prepared a", "prepared b"}; !slices.Equal(steps, want) {
		t.Errorf("steps %q, want %q", steps, want)
	}
	if got := s.bus.Finished(pod, "b"); len(got) != 1 || got[0].Provider != "b" {
		t.Errorf("finished with the start of b: %+v", got)
	}
	s.bus.Abort(t.Context(), "id")
	s.bus.Released(t.Context(), pod.Claims[1:])
	if want := []string{"a abort id", "b abort id", "b released r"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// lessor reserves for the admissions of its calls.
type lessor struct {
	*actor
	holds string
}

func (l *lessor) Lease(admissionID string) (ledger.Lease, bool) {
	return ledger.Lease{ID: l.name + "/" + admissionID, Provider: l.name, AdmissionID: admissionID}, admissionID == l.holds
}

// An advisory provider that fails for the second container gives up the first
// one's claims and lease too, and hears of it before the admission continues.
func TestAdvisoryFailureGivesUpAtOnce(t *testing.T) {
	t.Parallel()
	var heard []string
	calls := 0
	prepare := func(_ context.Context, claims []ledger.Claim) ([]ledger.Claim, error) {
		if calls++; calls > 1 {
			return nil, errdefs.Unavailablef("the power is gone")
		}
		return claims, nil
	}
	s := newStage(t,
		hint.Entry{Provider: &lessor{&actor{name: "a", plan: opaque("a"), prepare: prepare, heard: &heard}, "id"}, Mode: hint.Advisory},
		hint.Entry{Provider: &actor{name: "b", plan: opaque("b"), heard: &heard}, Mode: hint.Required},
	)
	for range 2 {
		if err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
			t.Fatal(err)
		}
		if err := s.bus.Prepare(t.Context(), "id", s.draft, s.req, &s.trace); err != nil {
			t.Fatal(err)
		}
	}
	pod, _ := s.draft.View().Pod("pod")
	if len(pod.Claims) != 1 || pod.Claims[0].Provider != "b" {
		t.Errorf("claims %+v, want that of b", pod.Claims)
	}
	if leases := slices.Collect(s.draft.View().Leases()); len(leases) != 0 {
		t.Errorf("leases %+v", leases)
	}
	if want := []string{"a abort id"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}

// The lease of what was prepared is in the draft beside the claims.
func TestPrepareKeepsLeases(t *testing.T) {
	t.Parallel()
	for id, want := range map[string][]ledger.Lease{
		"id":    {{ID: "a/id", Provider: "a", AdmissionID: "id"}},
		"other": nil,
	} {
		s := newStage(t, hint.Entry{Provider: &lessor{&actor{name: "a", plan: opaque("a")}, "id"}, Mode: hint.Required})
		if err := s.bus.Plan(t.Context(), s.draft, s.req, hint.Hint{Any: true}, &s.trace); err != nil {
			t.Fatal(err)
		}
		if err := s.bus.Prepare(t.Context(), id, s.draft, s.req, &s.trace); err != nil {
			t.Fatal(err)
		}
		if got := slices.Collect(s.draft.View().Leases()); !slices.Equal(got, want) {
			t.Errorf("leases of admission %s: %+v, want %+v", id, got, want)
		}
	}
}
