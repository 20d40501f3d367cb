package admission_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// decisions are calls that decide on a view of their own, as texts.
var decisions = map[string]func(ctx context.Context, h *twoNodes) (string, error){
	"a dry run": func(ctx context.Context, h *twoNodes) (string, error) {
		v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("new", 6, 0), DryRun: true})
		return verdictText(v), err
	},
	"a dry run that does not fit": func(ctx context.Context, h *twoNodes) (string, error) {
		v, err := h.Admit(ctx, admission.Request{Pod: guaranteed("new", 7, 0), DryRun: true})
		return verdictText(v), err
	},
	"hints": func(ctx context.Context, h *twoNodes) (string, error) {
		replies, err := h.Hints(ctx, guaranteed("new", 6, 0), "main")
		text := ""
		for _, r := range replies {
			for i := range r.Answers {
				a := &r.Answers[i]
				text += fmt.Sprintln(r.Provider, a.Resource, a.Kind, a.Hints)
				if a.Rule != nil {
					text += fmt.Sprintln(a.Rule.Universe, a.Rule.Must, a.Rule.Weights, a.Rule.Need, a.Rule.PreferredSize)
				}
			}
		}
		return text, err
	},
	"a dry run of a resize": func(ctx context.Context, h *twoNodes) (string, error) { return resizeText(ctx, h, 5, true) },
	"a resize":              func(ctx context.Context, h *twoNodes) (string, error) { return resizeText(ctx, h, 5, false) },
	"a resize that moves":   func(ctx context.Context, h *twoNodes) (string, error) { return resizeText(ctx, h, 8, false) },
	"a defragmentation": func(ctx context.Context, h *twoNodes) (string, error) {
		d, err := h.PlanDefragment(ctx, live.DefragmentRequest{Pod: guaranteed("new", 6, 0), MaxMoves: 4})
		text := verdictText(d.Verdict) + " " + d.Why
		for _, m := range d.Moves {
			text += " " + m.UID + stepsText(m.Plan)
		}
		return text, err
	},
	"a replacement": func(ctx context.Context, h *twoNodes) (string, error) {
		r, err := h.PlanReplacement(ctx, live.Loss{UID: "b"})
		if class := errdefs.ClassOf(err); err != nil && (class == errdefs.Refused || class == errdefs.Conflict) {
			return err.Error(), nil
		} else if err != nil {
			return "", err
		}
		return r.Reason + stepsText(r.Plan), nil
	},
}

func verdictText(v admission.Verdict) string {
	text := fmt.Sprint(v.Outcome, " ", v.Reason, " ", v.Message)
	if v.Pod != nil {
		for i := range v.Pod.Claims {
			text += v.Pod.Claims[i].Content()
		}
	}
	return text
}

func stepsText(p *transition.Plan) (text string) {
	for _, s := range p.Steps {
		text += fmt.Sprint(" ", s.Kind, " ", s.Owner)
		for i := range s.After {
			text += " " + s.After[i].Content()
		}
	}
	return text
}

func resizeText(ctx context.Context, h *twoNodes, cpus int64, dry bool) (string, error) {
	q := workload.Quantities{workload.CPU: cpus * 1000, workload.Memory: 1 << 20}
	r, err := h.Resize(ctx, live.ResizeRequest{UID: "a", DryRun: dry,
		Changes:       []workload.Change{{Container: "main", Requests: q, Limits: q}},
		MaxDisruption: live.AnyDisruption, MaxMove: live.AnyDisruption})
	var texts []string
	if r.Pod != nil {
		for i := range r.Pod.Claims {
			texts = append(texts, r.Pod.Claims[i].Content())
		}
	}
	return fmt.Sprint(r.Outcome, " ", r.Message, " ", texts, " ", r.Disruption), err
}

// TestOneBasis: the machine changes right after a call has taken its view. The call decides as it does after the change:
// no managers decide on a view of another machine, whose rules do not allow what they plan.
func TestOneBasis(t *testing.T) {
	t.Parallel()
	open := func(t *testing.T, policy topology.Policy, offline cpuset.Set) *twoNodes {
		t.Helper()
		h := changing(t, policy, hint.ContainerScope)
		for _, uid := range []string{"a", "b"} {
			p := guaranteed(uid, 2, 0)
			if uid == "b" {
				p = movable(p, workload.MovableAnywhere)
			}
			v, err := h.Admit(t.Context(), admission.Request{Pod: p})
			if must(t, err); v.Outcome != admission.Admitted {
				t.Fatal(v.Message)
			}
		}
		less, err := h.ledger.View().Machine().Without(offline)
		must(t, err)
		h.become(t, less)
		return h
	}
	whole := twoNodesOf()
	for _, policy := range []topology.Policy{topology.None, topology.SingleNUMANode} {
		for name, decide := range decisions {
			for _, change := range [][2]cpuset.Set{
				{{}, cpuset.Of(5)}, {cpuset.Of(5), {}}, {{}, cpuset.Of(9, 10)}, {cpuset.Of(9, 10), {}}, {{}, cpuset.Of(1, 3)},
				{cpuset.Of(1, 3), {}},
				{cpuset.Of(3), cpuset.Of(3, 5)}, {cpuset.Of(3, 5), cpuset.Of(3)}, {cpuset.Of(6, 12), cpuset.Of(3, 4)},
			} {
				after, err := whole.Without(change[1])
				must(t, err)
				settled := open(t, policy, change[0])
				settled.become(t, after)
				want, err := decide(t.Context(), settled)
				must(t, err)
				h := open(t, policy, change[0])
				before, changed := h.Managers, false
				h.Managers = func(v *ledger.View) (*hint.Bus, *topology.Manager) {
					if !changed {
						changed = true
						h.become(t, after)
					}
					return before(v)
				}
				got, err := decide(t.Context(), h)
				if err != nil || got != want || !changed {
					t.Errorf("%s under %s, CPUs %q and then %q are offline: changed %t, %v\n%s\nwant\n%s", name, policy, change[0],
						change[1], changed, err, got, want)
				}
			}
		}
	}
}

// TestNoBasis: without managers for any view, as if the machine changed again and again, a call ends, and may be repeated.
func TestNoBasis(t *testing.T) {
	t.Parallel()
	h := changing(t, topology.None, hint.ContainerScope)
	for _, uid := range []string{"a", "b"} {
		_, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed(uid, 2, 0)})
		must(t, err)
	}
	h.Managers = func(*ledger.View) (*hint.Bus, *topology.Manager) { return nil, nil }
	for name, decide := range decisions {
		if _, err := decide(t.Context(), h); err == nil || errdefs.ClassOf(err) != errdefs.Unavailable ||
			!strings.Contains(err.Error(), "policy or the machine") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := h.Admit(t.Context(), admission.Request{Pod: guaranteed("new", 2, 0)}); err == nil ||
		errdefs.ClassOf(err) != errdefs.Unavailable {
		t.Errorf("an admission: %v", err)
	}
}
