package hint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
)

// party answers calls, and notes their inputs.
type party struct {
	heard []string
	err   error
	// during is called while a call is under way.
	during func()
}

func (p *party) call(ctx context.Context, name, inputs string) (string, error) {
	return hint.Call(ctx, hint.RemoteCall{Party: name, Name: "question", Inputs: inputs}, func(context.Context) (string, error) {
		p.heard = append(p.heard, inputs)
		if p.during != nil {
			p.during()
		}
		return "answer to " + inputs, p.err
	})
}

// TestCalls: a call is made once for its inputs, and replayed after that.
func TestCalls(t *testing.T) {
	t.Parallel()
	var p party
	calls := &hint.Calls{Mode: hint.Replay}
	ctx := hint.WithCalls(t.Context(), calls)
	expect := func(mode hint.CallMode, inputs, want string, wantErr error) {
		t.Helper()
		calls.Mode = mode
		if got, err := p.call(ctx, "gpu", inputs); got != want || !errors.Is(err, wantErr) {
			t.Errorf("%q, %v; want %q, %v", got, err, want, wantErr)
		}
	}
	expect(hint.Replay, "a", "", hint.ErrUnanswered)
	if calls.Unanswered != "gpu" {
		t.Errorf("unanswered is %q", calls.Unanswered)
	}
	expect(hint.Trial, "a", "", hint.ErrNotCalled)
	expect(hint.Live, "a", "answer to a", nil)
	for _, mode := range []hint.CallMode{hint.Live, hint.Replay, hint.Trial} {
		expect(mode, "a", "answer to a", nil)
	}
	expect(hint.Replay, "b", "", hint.ErrUnanswered)
	for _, inputs := range []string{"b", "c", "d"} {
		expect(hint.Live, inputs, "answer to "+inputs, nil)
	}
	expect(hint.Live, "e", "", hint.ErrInputsChanged) // the fourth repetition
	if !slices.Equal(p.heard, []string{"a", "b", "c", "d"}) {
		t.Errorf("heard %q", p.heard)
	}
	// Another party has calls of its own.
	calls.Mode = hint.Live
	if _, err := p.call(ctx, "nic", "e"); err != nil {
		t.Error(err)
	}
	// What is tried beside it knows the answers, and adds none.
	tried := calls.Trial()
	beside := hint.WithCalls(t.Context(), tried)
	if got, err := p.call(beside, "gpu", "a"); got != "answer to a" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := p.call(beside, "gpu", "x"); !errors.Is(err, hint.ErrNotCalled) {
		t.Error(err)
	}
	hint.Skip(beside, "gpu")
	if !tried.Skipped["gpu"] || len(calls.Skipped) > 0 {
		t.Errorf("skipped %v, %v", tried.Skipped, calls.Skipped)
	}
	// Without Calls every call is made.
	before := len(p.heard)
	for range 2 {
		if _, err := p.call(t.Context(), "gpu", "a"); err != nil {
			t.Error(err)
		}
	}
	if len(p.heard) != before+2 {
		t.Errorf("heard %q", p.heard)
	}
}

// TestFailedCalls: a refusal is an answer; a party that failed is not called again,
// whatever the inputs; a caller that cancels leaves nothing behind.
func TestFailedCalls(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err   error
		again []string // the inputs of the calls when a and b are called again
	}{
		"refused": {errdefs.Refuse("", "no"), []string{"b"}},
		"failed":  {errdefs.Deadlinef("no answer"), nil},
		"unknown": {errors.New("boom"), nil},
	} {
		p := party{err: c.err}
		ctx := hint.WithCalls(t.Context(), &hint.Calls{})
		for range 2 {
			if _, err := p.call(ctx, "gpu", "a"); !errors.Is(err, c.err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		p.heard = nil
		for _, inputs := range []string{"a", "b"} {
			if _, err := p.call(ctx, "gpu", inputs); !errors.Is(err, c.err) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if !slices.Equal(p.heard, c.again) {
			t.Errorf("%s: heard %q, want %q", name, p.heard, c.again)
		}
	}

	p := party{err: context.Canceled}
	inner, cancel := context.WithCancel(t.Context())
	p.during = cancel
	calls := &hint.Calls{}
	if _, err := p.call(hint.WithCalls(inner, calls), "gpu", "a"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.err, p.during = nil, nil
	if got, err := p.call(hint.WithCalls(t.Context(), calls), "gpu", "a"); got != "answer to a" || err != nil {
		t.Errorf("%q, %v", got, err)
	}

	// What is to happen before a call may fail.
	calls = &hint.Calls{Before: func(_ context.Context, party string) error { return errdefs.Deadlinef("no turn at %s", party) }}
	p.heard = nil
	if _, err := p.call(hint.WithCalls(t.Context(), calls), "gpu", "a"); err == nil || !strings.Contains(err.Error(), "no turn at gpu") ||
		len(p.heard) > 0 {
		t.Errorf("%v, heard %q", err, p.heard)
	}
}

// interrupted is a provider whose hints need a remote call.
type interrupted struct{ hinttest.Slots }

func (interrupted) Hints(context.Context, *ledger.View, hint.Request) ([]hint.ResourceAnswer, error) {
	return nil, hint.ErrUnanswered
}

// TestInterrupted: the bus counts an interruption of a plan as no provider's failure, also that
// of a provider whose failures count for nothing.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	bus, err := hint.NewBus(nil, []hint.Entry{{Provider: &interrupted{hinttest.Slots{At: map[string]int{"s": 0}}}, Mode: hint.Advisory}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	view := ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("2n2c")}).View()
	var trace ledger.Trace
	_, err = bus.Hints(t.Context(), view, hint.Request{Pod: &ledgertest.Pod("a", "main").Pod}, &trace)
	if !errors.Is(err, hint.ErrUnanswered) || len(trace.Steps) > 0 {
		t.Errorf("%v, %+v", err, trace.Steps)
	}
	for _, err := range []error{hint.ErrUnanswered, hint.ErrInputsChanged} {
		if !hint.Interrupts(err) {
			t.Errorf("%v", err)
		}
	}
	if hint.Interrupts(hint.ErrNotCalled) || hint.Interrupts(errors.New("x")) {
		t.Error("too much interrupts a plan")
	}
}

func TestScratch(t *testing.T) {
	t.Parallel()
	type notes []string
	ctx := hint.WithCalls(t.Context(), &hint.Calls{})
	for range 2 {
		n := hint.Scratch[notes](ctx)
		*n = append(*n, "x")
	}
	if n := *hint.Scratch[notes](ctx); len(n) != 2 {
		t.Errorf("%q is remembered", n)
	}
	if n := *hint.Scratch[[]string](ctx); len(n) != 0 {
		t.Errorf("another provider finds %q", n)
	}
	*hint.Scratch[notes](t.Context()) = notes{"y"}
	if n := *hint.Scratch[notes](hint.WithCalls(t.Context(), &hint.Calls{})); len(n) != 0 {
		t.Errorf("another admission finds %q", n)
	}
}
