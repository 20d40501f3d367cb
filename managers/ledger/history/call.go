package history

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Call describes a call for the history. A context carries it to the commit of the call's
// changes. Its fields are set before the call is carried out; the steps, and what it is decided
// on, may be added at any time.
type Call struct {
	Name   string
	Time   time.Time
	Caller *Caller
	// Request is nil if there is nothing to make again.
	Request *Request

	mu      sync.Mutex
	steps   Steps    // guarded by mu
	decided *decided // guarded by mu; nil as long as nothing was decided
}

type callKey struct{}

// WithCall returns a context whose commits are recorded as changes of the call.
func WithCall(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, callKey{}, c)
}

// CallOf returns the call of a context; nil if it has none.
func CallOf(ctx context.Context) *Call {
	c, _ := ctx.Value(callKey{}).(*Call)
	return c
}

// maxSteps limits the different steps of a call that are kept; most calls have at most usualSteps.
const (
	maxSteps   = 64
	usualSteps = 12
)

// Step adds the time of a step.
func (c *Call) Step(step, provider string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.steps, func(s Step) bool { return s.Step == step && s.Provider == provider })
	switch {
	case i >= 0:
		c.steps[i].Took += took
	case len(c.steps) < maxSteps:
		if c.steps == nil {
			c.steps = make(Steps, 0, usualSteps)
		}
		c.steps = append(c.steps, Step{step, provider, took})
	}
}

// decided is what a call was decided on, before it is recorded.
type decided struct {
	revision, entry uint64
	reserved        []*ledger.Pod
}

// DecidedOn notes what a call is decided on: a view, and the reservations that it has beyond the ledger. A call
// that is decided again has the last one. It may be called on nil.
func (c *Call) DecidedOn(v *ledger.View, reserved []*ledger.Pod) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.decided = &decided{v.Revision(), v.Recorded(), reserved}
}

// basis returns what the call was decided on; nil if that is not known.
func (c *Call) basis() (*Basis, error) {
	c.mu.Lock()
	d := c.decided
	c.mu.Unlock()
	if d == nil {
		return nil, nil
	}
	b := &Basis{Revision: d.revision, Entry: d.entry}
	return b, b.Reserve(d.reserved)
}

// request adds what is needed to make the call again.
func (e *Entry) request(c *Call) error {
	if c == nil || c.Request == nil {
		return nil
	}
	text, err := json.Marshal(c.Request)
	if err != nil {
		return err
	}
	if len(text) > longestRequest {
		e.RequestBytes = len(text)
		return nil
	}
	e.Request = text
	if e.Verdict != deferredVerdict { // which is not decided again
		e.Basis, err = c.basis()
	}
	return err
}

// admitted adds the request of a call that was carried out, and its verdict.
func (e *Entry) admitted(c *Call) error {
	if c == nil || c.Request == nil {
		return nil
	}
	if c.Request.Policy == nil {
		e.Verdict = "admitted"
	}
	return e.request(c)
}

// Requested returns the request of an entry; nil if it has none, or if it was too large.
func (e *Entry) Requested() (*Request, error) {
	if len(e.Request) == 0 {
		return nil, nil
	}
	var req Request
	if err := json.Unmarshal(e.Request, &req); err != nil {
		return nil, errdefs.Corruptf("the request is damaged: %w", err)
	}
	return &req, nil
}
