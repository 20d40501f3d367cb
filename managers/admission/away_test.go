package admission_test

import (
	"context"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
)

// remote is a provider that calls another process for hints and plans.
type remote struct {
	hinttest.Slots
	note func(string)
}

func (r *remote) call(ctx context.Context, name string) error {
	_, err := hint.Call(ctx, hint.RemoteCall{Party: "slots", Name: name}, func(context.Context) (bool, error) {
		r.note("call")
		return true, nil
	})
	return err
}

func (r *remote) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	if err := r.call(ctx, "hints"); err != nil {
		return nil, err
	}
	return r.Slots.Hints(ctx, view, req)
}

func (r *remote) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if err := r.call(ctx, "plan"); err != nil {
		return nil, err
	}
	return r.Slots.Plan(ctx, view, req, affinity)
}

// TestAway: a call that decides releases its turn and slot while each plugin or
// provider is called, and has it again after the answer.
func TestAway(t *testing.T) {
	t.Parallel()
	h := newFixture(t, topology.BestEffort)
	var heard []string
	note := func(s string) { heard = append(heard, s) }
	h.with(t, &remote{note: note})
	h.Away = func(context.Context) func() {
		note("away")
		return func() { note("back") }
	}
	round := []string{"away", "call", "back"}
	for name, row := range map[string]struct {
		do   func() error
		want []string
	}{
		"dry run": {func() error {
			_, err := h.Admit(t.Context(), admission.Request{Pod: wantingSlot("dry"), DryRun: true})
			return err
		}, slices.Concat(round, round)},
		"admission": {func() error {
			_, err := h.Admit(t.Context(), admission.Request{Pod: wantingSlot("pod")})
			return err
		}, slices.Concat(round, round)},
		"hints": {func() error {
			_, err := h.Hints(t.Context(), wantingSlot("hints"), "main")
			return err
		}, round},
	} {
		heard = nil
		if err := row.do(); err != nil || !slices.Equal(heard, row.want) {
			t.Errorf("%s: %q, %v; want %q", name, heard, err, row.want)
		}
	}
}
