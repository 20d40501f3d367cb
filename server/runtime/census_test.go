package runtime_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/server/runtime"
)

// lists answers with what the first of the steps that are left gives.
type lists []func() (ids []string, err error)

func (l *lists) List(context.Context) (out []runtime.Container, err error) {
	step := (*l)[0]
	*l = (*l)[1:]
	ids, err := step()
	for _, id := range ids {
		out = append(out, runtime.Container{ID: id, Owner: ledger.Owner{Pod: "a", Container: "c"}, Phase: runtime.Running})
	}
	return out, err
}

// counted is a census of a ledger with pod a and bindings.
type counted struct {
	*runtime.Census
	lists
	t      *testing.T
	ledger *ledger.Ledger
	// alive are containers that have processes, whatever is listed; of those in doubt
	// nobody knows.
	alive, doubt []string
}

func newCounted(t *testing.T, bound ...string) *counted {
	t.Helper()
	c := &counted{t: t, ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})}
	c.Census = &runtime.Census{
		Runtime: &c.lists, View: c.ledger.View, Every: time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Engine: admission.New(admission.Config{}, admission.Parts{Ledger: c.ledger}),
		Lives: func(_ context.Context, b ledger.Binding) (bool, error) {
			if slices.Contains(c.doubt, b.ID) {
				return false, fault.Unavailablef("who knows")
			}
			return slices.Contains(c.alive, b.ID), nil
		},
	}
	c.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
	c.bind(bound...)
	return c
}

func (c *counted) update(change func(*ledger.Draft)) {
	c.t.Helper()
	if _, err := c.ledger.Update(c.t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		c.t.Fatal(err)
	}
}

func (c *counted) bind(ids ...string) {
	c.t.Helper()
	c.update(func(d *ledger.Draft) {
		for _, id := range ids {
			d.Bind(ledger.Binding{ID: id, Owner: ledger.Owner{Pod: "a", Container: "c"}, Sequence: 1})
		}
	})
}

// bound expects which ids are bound.
func (c *counted) bound(want ...string) {
	c.t.Helper()
	var got []string
	for b := range c.ledger.View().Bindings() {
		got = append(got, b.ID)
	}
	if slices.Sort(got); !slices.Equal(got, want) {
		c.t.Errorf("bound are %q, want %q", got, want)
	}
}

// A runtime that does not answer at the start does not keep what ended before it.
func TestCensusAfterABadStart(t *testing.T) {
	t.Parallel()
	c := newCounted(t, "ended", "runs")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	away := fault.Unavailablef("nobody there")
	c.lists = lists{
		func() ([]string, error) { return nil, away },
		func() ([]string, error) {
			c.bind("coming") // the runtime is about to make it
			return nil, away
		},
		func() ([]string, error) {
			c.bound("coming", "ended", "runs")
			return []string{"runs"}, nil
		},
		func() ([]string, error) {
			c.bound("coming", "runs")
			return []string{"coming"}, nil
		},
		func() ([]string, error) {
			c.bound("coming")
			return nil, nil
		},
		func() ([]string, error) {
			c.bound()
			cancel()
			return nil, ctx.Err()
		},
	}
	if err := c.Begin(t.Context()); !errors.Is(err, away) {
		t.Errorf("got %v", err)
	}
	if err := c.Run(ctx); !errors.Is(err, context.Canceled) || len(c.lists) > 0 {
		t.Errorf("%d steps left: %v", len(c.lists), err)
	}
}

// What a runtime does not show, as one that has lost its records or not read them yet,
// stays bound for as long as it has processes: at a start and later.
func TestCensusOfWhatLives(t *testing.T) {
	t.Parallel()
	c := newCounted(t, "ended", "lives", "unsure")
	c.alive, c.doubt = []string{"lives"}, []string{"unsure"}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c.lists = lists{
		func() ([]string, error) { return nil, nil },
		func() ([]string, error) {
			c.bound("lives", "unsure")
			c.doubt = nil
			return nil, nil
		},
		func() ([]string, error) {
			c.bound("lives")
			return []string{"lives"}, nil
		},
		func() ([]string, error) {
			c.bound("lives")
			return nil, nil
		},
		func() ([]string, error) {
			c.bound("lives")
			c.alive = nil
			return nil, nil
		},
		func() ([]string, error) {
			c.bound()
			cancel()
			return nil, ctx.Err()
		},
	}
	if err := c.Begin(t.Context()); err != nil {
		t.Error(err)
	}
	if err := c.Run(ctx); !errors.Is(err, context.Canceled) || len(c.lists) > 0 {
		t.Errorf("%d steps left: %v", len(c.lists), err)
	}
}

// What ends while a list is on its way is not taken over from it.
func TestCensusOfYesterday(t *testing.T) {
	t.Parallel()
	for name, during := range map[string]func(*counted){
		"unbound": func(c *counted) {
			c.update(func(d *ledger.Draft) { d.Unbind("short") })
		},
		"bound and unbound": func(c *counted) {
			c.update(func(d *ledger.Draft) { d.Unbind("short") })
			c.bind("shorter")
			c.update(func(d *ledger.Draft) { d.Unbind("shorter") })
		},
		"removed and back": func(c *counted) {
			c.update(func(d *ledger.Draft) { d.RemovePod("a") })
			c.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCounted(t, "short")
			c.lists = lists{
				func() ([]string, error) {
					during(c)
					return []string{"short", "shorter"}, nil
				},
				// Who is still there the next time is there.
				func() ([]string, error) { return []string{"found", "found"}, nil },
			}
			for _, want := range [][]string{nil, {"found"}} {
				if err := c.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
				c.bound(want...)
			}
		})
	}
}
