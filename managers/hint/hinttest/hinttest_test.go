package hinttest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// wanting is a pod whose containers request so many slots each.
func wanting(uid string, slots ...int64) *workload.Pod {
	p := &workload.Pod{UID: uid}
	for i, n := range slots {
		c := workload.Container{Name: fmt.Sprint("c", i)}
		if n > 0 {
			c.Requests = workload.Quantities{SlotResource: n}
		}
		p.Containers = append(p.Containers, c)
	}
	return p
}

// setup is a machine of two nodes with four slots, one of them taken
// by a pod of a draft, so that a liar who changes it spoils no ledger.
func setup(t *testing.T) Setup {
	claim := ledgertest.Devices("c", string(SlotResource), "a")
	claim.Provider = "slots"
	draft := ledger.NewDraft(ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("1s2n4c1t")}).View())
	draft.PutPod(ledgertest.With(ledgertest.Pod("earlier", "c"), claim))
	return Setup{
		Provider: &Slots{At: map[string]int{"a": 0, "b": 0, "c": 1, "d": 1}},
		View:     draft.View(),
		Pods:     []*workload.Pod{wanting("one", 1), wanting("two", 2, 0, 1), wanting("many", 3, 1), wanting("none", 0)},
	}
}

func TestSlotsKeepTheContract(t *testing.T) {
	t.Parallel()
	Run(t, func() Setup { return setup(t) })
}

// liar breaks promises by replacing methods of a provider that keeps them.
type liar struct {
	*Slots
	name    func() string
	hints   func(view *ledger.View, req hint.Request, honest []hint.ResourceAnswer) []hint.ResourceAnswer
	plan    func(view *ledger.View, req hint.Request, honest []ledger.Claim) ([]ledger.Claim, error)
	prepare func(id string, honest []ledger.Claim) ([]ledger.Claim, error)
}

func (l *liar) Name() string {
	if l.name != nil {
		return l.name()
	}
	return l.Slots.Name()
}

func (l *liar) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	answers, err := l.Slots.Hints(ctx, view, req)
	if l.hints != nil && len(answers) > 0 {
		answers = l.hints(view, req, answers)
	}
	return answers, err
}

func (l *liar) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	claims, err := l.Slots.Plan(ctx, view, req, affinity)
	if l.plan != nil && len(claims) > 0 {
		return l.plan(view, req, claims)
	}
	return claims, err
}

func (l *liar) Prepare(ctx context.Context, id string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	claims, err := l.Slots.Prepare(ctx, id, req, claims)
	if l.prepare != nil {
		return l.prepare(id, claims)
	}
	return claims, err
}

func TestLiarsAreCaught(t *testing.T) {
	t.Parallel()
	calls := 0
	for name, row := range map[string]struct {
		liar liar
		want string
	}{
		"no name":        {liar{name: func() string { return "" }}, "has no name"},
		"unsteady name":  {liar{name: func() string { calls++; return fmt.Sprint("n", calls) }}, "the name was"},
		"unsorted hints": {liar{hints: withHints(func(h []hint.Hint) []hint.Hint { slices.Reverse(h); return h })}, "out of order"},
		"hint twice":     {liar{hints: withHints(func(h []hint.Hint) []hint.Hint { return append(h, h[len(h)-1]) })}, "there twice"},
		"unknown node": {liar{hints: withHints(func(h []hint.Hint) []hint.Hint {
			return append(h,
				hint.Hint{Nodes: numa.Of(0, 1, 7)})
		})}, "the machine has 0-1"},
		"no nodes":   {liar{hints: withHints(func([]hint.Hint) []hint.Hint { return []hint.Hint{{}} })}, "names no nodes"},
		"no options": {liar{hints: withHints(func([]hint.Hint) []hint.Hint { return nil })}, "no options"},
		"resource twice": {liar{hints: func(_ *ledger.View, _ hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
			return append(a, a[0])
		}}, "two answers"},
		"resources out of order": {liar{hints: func(_ *ledger.View, _ hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
			return append(a, hint.ResourceAnswer{Resource: "a", Answer: hint.Answer{Kind: hint.NoPreference}})
		}}, "ordered by resource"},
		"remembers": {liar{hints: func(_ *ledger.View, _ hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
			calls++
			return append(a, hint.ResourceAnswer{Resource: fmt.Sprintf("x%09d", calls), Answer: hint.Answer{Kind: hint.NoPreference}})
		}}, "and then"},
		"changes the view": {liar{hints: func(v *ledger.View, _ hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
			p, _ := v.Pod("earlier")
			p.Claims[0].Resource += "x"
			return a
		}}, "the view changed"},
		"changes the pod": {liar{hints: func(_ *ledger.View, r hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
			r.Pod.Containers[0].Name = "x"
			return a
		}}, "the pod changed"},
		"takes what is taken": {liar{plan: withClaim(func(c *ledger.Claim) {
			c.Devices = &ledger.Devices{Devices: []ledger.Device{{ID: "a"}}}
		})}, "earlier"},
		"another's name":      {liar{plan: withClaim(func(c *ledger.Claim) { c.Provider = "x" })}, `in the name of "x"`},
		"another's container": {liar{plan: withClaim(func(c *ledger.Claim) { c.Owner.Container = "x" })}, "was requested"},
		"no resource":         {liar{plan: withClaim(func(c *ledger.Claim) { c.Resource = "" })}, "names no resource"},
		"untyped error": {liar{plan: func(*ledger.View, hint.Request, []ledger.Claim) ([]ledger.Claim, error) {
			return nil, errors.New("no")
		}}, "has no class"},
		"unsteady plan": {liar{plan: withClaim(func(c *ledger.Claim) {
			calls++
			c.Devices = &ledger.Devices{Devices: []ledger.Device{{ID: fmt.Sprint("x", calls)}}}
		})}, "and then"},
		"prepares once": {liar{prepare: func(_ string, c []ledger.Claim) ([]ledger.Claim, error) {
			calls++
			c[0].Devices.Response = fmt.Appendf(nil, "%d", calls)
			return c, nil
		}}, "when repeated"},
		"prepares something else": {liar{prepare: func(_ string, c []ledger.Claim) ([]ledger.Claim, error) {
			c[0].Devices = &ledger.Devices{Devices: []ledger.Device{{ID: "z"}}}
			return c, nil
		}}, "changed the claim"},
		"prepares nothing": {liar{prepare: func(string, []ledger.Claim) ([]ledger.Claim, error) { return nil, nil }}, "returned 0"},
	} {
		// One after the other: the liars share a counter.
		t.Run(name, func(t *testing.T) {
			findings := Check(t.Context(), func() Setup {
				s := setup(t)
				l := row.liar
				l.Slots = s.Provider.(*Slots)
				s.Provider = &l
				return s
			})
			if !strings.Contains(strings.Join(findings, "\n"), row.want) {
				t.Errorf("findings %q have nothing of %q", findings, row.want)
			}
		})
	}
	idle := Check(t.Context(), func() Setup {
		s := setup(t)
		s.Pods = s.Pods[3:]
		return s
	})
	if len(idle) != 1 {
		t.Errorf("a setup without work has findings %q, want one", idle)
	}
}

func withHints(change func([]hint.Hint) []hint.Hint) func(*ledger.View, hint.Request, []hint.ResourceAnswer) []hint.ResourceAnswer {
	return func(_ *ledger.View, _ hint.Request, a []hint.ResourceAnswer) []hint.ResourceAnswer {
		if a[0].Kind == hint.Options {
			a[0].Hints = change(a[0].Hints)
		}
		return a
	}
}

func withClaim(change func(*ledger.Claim)) func(*ledger.View, hint.Request, []ledger.Claim) ([]ledger.Claim, error) {
	return func(_ *ledger.View, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
		for i := range claims {
			change(&claims[i])
		}
		return claims, nil
	}
}
