package hint

import (
	"context"
	"errors"
	"reflect"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// CallMode is the handling of a remote call without a recorded answer.
type CallMode int

const (
	// Live makes the call and records its answer.
	Live CallMode = iota
	// Replay makes no call: planning ends with ErrUnanswered, and is repeated Live
	// without the admission lock.
	Replay
	// Trial makes no call: the provider continues without the answer (ErrNotCalled).
	Trial
)

// maxRepeats bounds how often one call is repeated because its inputs have changed.
const maxRepeats = 3

var (
	// ErrUnanswered is returned by Call in the mode Replay for a call without a
	// recorded answer. Providers return it as it is.
	ErrUnanswered = errors.New("a remote call of the plan has no recorded answer")
	// ErrNotCalled is returned by Call in the mode Trial for a call without a
	// recorded answer. Providers choose without the answer.
	ErrNotCalled = errors.New("remote calls are not made in a trial")
	// ErrInputsChanged is returned by Call when the inputs of one call have changed
	// more often than it may be repeated. Its class is Unavailable.
	ErrInputsChanged error = &errdefs.Error{
		Class:   errdefs.Unavailable,
		Message: "other admissions changed the inputs of a remote call each time it was made",
	}
)

// Interrupts reports whether an error is not about the pod or a provider: the plan must be
// repeated, or is not possible now.
func Interrupts(err error) bool {
	return errors.Is(err, ErrUnanswered) || errors.Is(err, ErrInputsChanged)
}

// RemoteCall names a call that planning makes outside of the process.
type RemoteCall struct {
	// Party is called: the resource of a device plugin, or the name of a provider.
	Party string
	// Name distinguishes the calls of one plan to one party.
	Name string
	// Inputs is everything that the answer depends on, besides the pod.
	Inputs string
}

// Calls are the remote calls during the planning of one pod, with their answers. A plan is made
// Live without a lock, and replayed with the recorded answers under the admission lock. Equal
// answers give an equal plan, so only calls with changed inputs are repeated. A party that failed
// is not called again for the pod. Calls is not safe for concurrent use.
type Calls struct {
	// Mode of the plan that is being made.
	Mode CallMode
	// Before, if set, runs before each call that is made; its error is the call's.
	Before func(ctx context.Context, party string) error
	// Away, if set, runs when a call is made, and back after its answer.
	Away func(ctx context.Context) (back func())
	// Unanswered is the party of the call for which ErrUnanswered was returned last.
	Unanswered string
	// Skipped are the parties whose missing answers providers have skipped (Skip).
	Skipped map[string]bool
	// Incomplete is whether an answer was missing in the mode Trial. Without one, the plan is the same as in the mode Live.
	Incomplete bool

	notes   []note // of the provider that plans
	answers map[RemoteCall]answer
	failed  map[string]error  // by party
	made    map[[2]string]int // by party and name
	scratch map[reflect.Type]any
}

type answer struct {
	value any
	err   error // a refusal
}

// Trial returns a copy in the mode Trial, with the recorded answers.
func (c *Calls) Trial() *Calls {
	out := &Calls{Mode: Trial}
	if c != nil {
		out.answers, out.failed = c.answers, c.failed
	}
	return out
}

// InTrial returns a context for a plan that makes no remote calls and has the answers that were recorded until now, and its calls.
func InTrial(ctx context.Context) (context.Context, *Calls) {
	c, _ := ctx.Value(callsKey{}).(*Calls)
	trial := c.Trial()
	return WithCalls(ctx, trial), trial
}

type callsKey struct{}

// WithCalls returns a context under which planning makes its remote calls through c.
func WithCalls(ctx context.Context, c *Calls) context.Context {
	return context.WithValue(ctx, callsKey{}, c)
}

// Skip notes that the provider of a party plans without knowing the party's answer.
func Skip(ctx context.Context, party string) {
	if c, ok := ctx.Value(callsKey{}).(*Calls); ok {
		if c.Skipped == nil {
			c.Skipped = map[string]bool{}
		}
		c.Skipped[party] = true
	}
}

// note is what a provider remarks about its plan.
type note struct{ resource, text string }

// Note adds a remark about a resource to the trace of the plan that is being made. Without Calls in ctx it has no effect.
func Note(ctx context.Context, resource, text string) {
	if c, ok := ctx.Value(callsKey{}).(*Calls); ok {
		c.notes = append(c.notes, note{resource, text})
	}
}

// noted moves the notes of a provider to the trace.
func noted(ctx context.Context, req Request, provider string, trace *ledger.Trace) {
	c, ok := ctx.Value(callsKey{}).(*Calls)
	if !ok || len(c.notes) == 0 {
		return
	}
	for _, n := range c.notes {
		trace.Add(ledger.Step{
			Kind: ledger.StepNoted, Container: req.Owner().Container, Provider: provider, Resource: n.resource, Text: n.text,
		})
	}
	c.notes = nil
}

// Call makes a remote call of planning, or returns its recorded answer, depending on the mode of
// the Calls in ctx. Without Calls the call is made. Hints, Plan and Validate of a provider must
// make every remote call with Call. The answer is shared between plans and must not be changed.
func Call[T any](ctx context.Context, rc RemoteCall, do func(context.Context) (T, error)) (T, error) {
	var none T
	c, ok := ctx.Value(callsKey{}).(*Calls)
	if !ok {
		return do(ctx)
	}
	if a, ok := c.answers[rc]; ok {
		value, _ := a.value.(T)
		return value, a.err
	}
	if err := c.failed[rc.Party]; err != nil {
		return none, err
	}
	switch c.Mode {
	case Replay:
		c.Unanswered = rc.Party
		return none, ErrUnanswered
	case Trial:
		c.Incomplete = true
		return none, ErrNotCalled
	}
	if err := c.begin(ctx, rc); err != nil {
		return none, err
	}
	value, err := callOut(ctx, c.Away, do)
	if ctx.Err() == nil {
		c.record(rc, value, err)
	}
	return value, err
}

func callOut[T any](ctx context.Context, away func(context.Context) (back func()), do func(context.Context) (T, error)) (T, error) {
	if away != nil {
		defer away(ctx)()
	}
	return do(ctx)
}

// begin counts a call that is about to be made.
func (c *Calls) begin(ctx context.Context, rc RemoteCall) error {
	if c.answers == nil {
		c.answers, c.failed, c.made = map[RemoteCall]answer{}, map[string]error{}, map[[2]string]int{}
	}
	id := [2]string{rc.Party, rc.Name}
	if c.made[id] > maxRepeats {
		return ErrInputsChanged
	}
	c.made[id]++
	if c.Before != nil {
		return c.Before(ctx, rc.Party)
	}
	return nil
}

// record keeps an answer. A refusal is one; any other error is the party's failure.
func (c *Calls) record(rc RemoteCall, value any, err error) {
	if err != nil && errdefs.ClassOf(err) != errdefs.Refused {
		c.failed[rc.Party] = err
		return
	}
	c.answers[rc] = answer{value, err}
}

// Scratch returns a provider's temporary data for the admission of one pod: its own T, which
// exists until the end of the admission. Without Calls in ctx it is a new T for each call.
func Scratch[T any](ctx context.Context) *T {
	c, ok := ctx.Value(callsKey{}).(*Calls)
	if !ok {
		return new(T)
	}
	of := reflect.TypeFor[T]()
	have, ok := c.scratch[of].(*T)
	if !ok {
		have = new(T)
		if c.scratch == nil {
			c.scratch = map[reflect.Type]any{}
		}
		c.scratch[of] = have
	}
	return have
}
