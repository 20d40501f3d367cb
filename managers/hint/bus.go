package hint

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/numa"
)

// Mode is the effect of a provider's failure. A refusal is an answer and not a failure, and has
// the same effect in both modes.
type Mode string

const (
	// Required: a failure refuses the admission and names the provider.
	Required Mode = "required"
	// Advisory: a failure counts as no preference and no claims, and is in the trace.
	Advisory Mode = "advisory"
)

// Entry is a provider, or another member, with its place on the bus.
type Entry struct {
	Provider Member
	Mode     Mode
	// Deadline bounds each call; 0 leaves it to the caller's context. A provider
	// has to watch its context: the bus starts nothing that could overtake it.
	Deadline time.Duration
	// Index orders the providers that the bus's order does not name.
	Index int
}

// WithTimeout derives a context that ends after a time; context.WithTimeout is
// the one there is. It is passed in because managers have no clock.
type WithTimeout func(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc)

// Bus speaks with all providers, one after the other in a fixed order. It never
// changes: another set of providers is another bus.
type Bus struct {
	entries     []Entry
	withTimeout WithTimeout
}

// providers are the members that hand something out, in order.
func (b *Bus) providers() iter.Seq2[*Entry, Provider] {
	return func(yield func(*Entry, Provider) bool) {
		for i := range b.entries {
			if p, ok := b.entries[i].Provider.(Provider); ok && !yield(&b.entries[i], p) {
				return
			}
		}
	}
}

// call makes one call to a provider with its deadline. An error has the provider's name, and the
// class, reason and text of the provider's error. An exceeded deadline is of class Deadline. If
// the caller's context has ended, its error is returned.
func (b *Bus) call(ctx context.Context, e *Entry, what string, req Request, do func(context.Context) error) error {
	limited := ctx
	if e.Deadline > 0 {
		var cancel context.CancelFunc
		limited, cancel = b.withTimeout(ctx, e.Deadline)
		defer cancel()
	}
	err := do(limited)
	if err == nil {
		return nil
	}
	if Interrupts(err) {
		return err
	}
	name := e.Provider.Name()
	if ctx.Err() != nil {
		return fmt.Errorf("%s of provider %s for %s: %w", what, name, req.Owner(), ctx.Err())
	}
	var own *errdefs.Error
	if errors.As(err, &own) && own.Provider != "" {
		return err
	}
	named := &errdefs.Error{Class: errdefs.ClassOf(err), Message: err.Error(), Provider: name, Err: err}
	if own != nil {
		named.Resource, named.Fields = own.Resource, own.Fields
	}
	if limited.Err() != nil && own == nil {
		named.Class = errdefs.Deadline
		named.Message = fmt.Sprintf("provider %s did not answer within %s (%s for %s)", name, e.Deadline, what, req.Owner())
	}
	return named
}

// tolerated reports whether the admission continues after an error of call. The trace then has
// the error.
func tolerated(ctx context.Context, e *Entry, req Request, err error, trace *ledger.Trace) bool {
	if e.Mode == Required || ctx.Err() != nil || Interrupts(err) {
		return false
	}
	if errdefs.ClassOf(err) == errdefs.Refused {
		return false
	}
	trace.Add(ledger.Step{
		Kind:      ledger.StepNoted,
		Container: req.Owner().Container,
		Provider:  e.Provider.Name(),
		Text:      "this advisory provider failed and is ignored: " + err.Error(),
	})
	return true
}

// Hints calls every provider, in order, and adds each answer to the trace. There
// is one reply for each provider, in order, without answers where an advisory
// one failed. An error is a required provider's failure and names it; an answer
// that breaks the rules of CheckReply is one.
func (b *Bus) Hints(ctx context.Context, view *ledger.View, req Request, trace *ledger.Trace) ([]Reply, error) {
	replies := make([]Reply, 0, len(b.entries))
	machine := view.Machine().NodeMask()
	for e, p := range b.providers() {
		reply := Reply{Provider: p.Name()}
		ctx, step := stepOf(ctx, StepHints, reply.Provider)
		err := b.call(ctx, e, "hints", req, func(ctx context.Context) (err error) {
			if reply.Answers, err = p.Hints(ctx, view, req); err != nil {
				return err
			}
			return CheckReply(reply, machine)
		})
		step.End(err)
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return nil, err
			}
			reply.Answers = nil
		}
		for j := range reply.Answers {
			trace.Add(answered(req, reply.Provider, reply.Answers[j]))
		}
		replies = append(replies, reply)
	}
	return replies, nil
}

// Plan plans a request under an affinity with every provider, in order. It adds the claims to the
// draft, so that each provider sees the plans of those before. The draft must contain the pod. An
// error is a refusal, a required provider's failure, or claims that break the rules of CheckPlan
// or of the ledger. The draft is then incomplete and must be dropped.
func (b *Bus) Plan(ctx context.Context, draft *ledger.Draft, req Request, affinity Hint, trace *ledger.Trace) error {
	for e, p := range b.providers() {
		var claims []ledger.Claim
		ctx, step := stepOf(ctx, StepPlan, p.Name())
		err := b.call(ctx, e, "plan", req, func(ctx context.Context) (err error) {
			view := draft.View()
			if claims, err = p.Plan(ctx, view, req, affinity); err != nil || len(claims) == 0 {
				return err
			}
			return addPlan(p.Name(), draft, req, claims)
		})
		step.End(err)
		noted(ctx, req, p.Name(), trace)
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return err
			}
			continue
		}
		for j := range claims {
			claims[j].Affinity = followed(affinity)
		}
		for j := range claims {
			trace.Add(planned(&claims[j]))
		}
	}
	return nil
}

// followed is the affinity that claims record: none if none was merged. An affinity without nodes
// and preference is never the result of a merge that admits.
func followed(affinity Hint) *Hint {
	if affinity.Any && !affinity.Preferred {
		return nil
	}
	return &affinity
}

// addPlan checks claims alone and with the draft, and adds them to the draft. Other claims of the pod may break the
// policy: a pod that runs may have lost CPUs that another of its containers keeps.
func addPlan(provider string, draft *ledger.Draft, req Request, claims []ledger.Claim) error {
	if err := CheckPlan(provider, req, claims); err != nil {
		return err
	}
	before, known := draft.View().Pod(req.Pod.UID)
	draft.AddClaims(req.Pod.UID, claims...)
	findings := slices.DeleteFunc(check.Planned(draft.View(), req.Pod.UID, claims), func(f check.Finding) bool {
		return f.Kind == check.Policy && !slices.ContainsFunc(claims,
			func(c ledger.Claim) bool { return c.Owner == f.Owner && c.Resource == f.Resource })
	})
	err := draft.View().CheckStored(req.Pod.UID, claims)
	if len(findings) == 0 && err == nil {
		return nil
	}
	if known {
		draft.PutPod(before)
	}
	if err != nil {
		return err
	}
	return broken(provider, findings[0].Resource, "provider %s planned claims that the ledger does not allow: %s", provider, findings[0])
}

// Validate calls every validator with the whole plan, in order. An error is a refusal or a
// required provider's failure.
func (b *Bus) Validate(ctx context.Context, view *ledger.View, req Request, trace *ledger.Trace) error {
	for i := range b.entries {
		e := &b.entries[i]
		v, ok := e.Provider.(Validator)
		if !ok {
			continue
		}
		err := b.call(ctx, e, "validation", req, func(ctx context.Context) error { return v.Validate(ctx, view, req) })
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return err
			}
			continue
		}
		trace.Add(ledger.Step{Kind: ledger.StepValidated, Container: req.Owner().Container, Provider: e.Provider.Name()})
	}
	return nil
}

// Prepare lets every Preparer complete its claims for the request's owner, in order. An error is
// a refusal or a required provider's failure, and prepared claims must be aborted. An advisory
// provider that fails loses all its claims of the pod. It is notified immediately, because it may
// hold a reservation.
func (b *Bus) Prepare(ctx context.Context, admissionID string, draft *ledger.Draft, req Request, trace *ledger.Trace) error {
	for e, p := range b.providers() {
		name := p.Name()
		claims := ofRequest(draft, name, req)
		if len(claims) == 0 {
			continue
		}
		prepared, err := b.prepared(ctx, e, admissionID, req, claims)
		if err == nil && &prepared[0] != &claims[0] { // else nothing was added to the planned claims
			draft.AddClaims(req.Pod.UID, prepared...)
			err = draft.View().CheckStored(req.Pod.UID, prepared)
		}
		if err != nil {
			if !tolerated(ctx, e, req, err, trace) {
				return err
			}
			b.giveUp(ctx, e, admissionID, draft, req.Pod.UID)
			continue
		}
		if l, ok := p.(Leaser); ok {
			if lease, held := l.Lease(admissionID); held {
				draft.PutLease(lease)
			}
		}
		for j := range prepared {
			c := &prepared[j]
			trace.Add(ledger.Step{Kind: ledger.StepPrepared, Container: c.Owner.Container, Provider: name, Resource: c.Resource})
		}
	}
	return nil
}

// prepared calls a Preparer. Other claims are complete as planned.
func (b *Bus) prepared(ctx context.Context, e *Entry, admissionID string, req Request, claims []ledger.Claim) (prepared []ledger.Claim,
	err error) {
	p, ok := e.Provider.(Preparer)
	if !ok {
		return claims, nil
	}
	ctx, step := stepOf(ctx, StepPrepare, e.Provider.Name())
	err = b.call(ctx, e, "preparation", req, func(ctx context.Context) (err error) {
		if prepared, err = p.Prepare(ctx, admissionID, req, claims); err != nil {
			return err
		}
		return CheckPrepared(e.Provider.Name(), claims, prepared)
	})
	step.End(err)
	return prepared, err
}

// giveUp continues without an advisory provider that failed to prepare. Aborts are for a whole
// admission, so its claims of earlier containers are removed too.
func (b *Bus) giveUp(ctx context.Context, e *Entry, admissionID string, draft *ledger.Draft, uid string) {
	drop(draft, e.Provider.Name(), uid)
	if l, ok := e.Provider.(Leaser); ok {
		if lease, held := l.Lease(admissionID); held {
			draft.DropLease(lease.ID)
		}
	}
	if a, ok := e.Provider.(Aborter); ok {
		b.notify(ctx, e, func(ctx context.Context) { a.Abort(ctx, admissionID) })
	}
}

// Explain calls every Explainer, in order, what a request lacks on the given
// nodes.
func (b *Bus) Explain(view *ledger.View, req Request, nodes numa.Mask) []ledger.Shortage {
	var all []ledger.Shortage
	for i := range b.entries {
		if x, ok := b.entries[i].Provider.(Explainer); ok {
			all = append(all, x.Explain(view, req, nodes)...)
		}
	}
	return all
}

// Resources returns the names of all resources of Catalogs, each once and sorted.
func (b *Bus) Resources() []string {
	var all []string
	for i := range b.entries {
		if c, ok := b.entries[i].Provider.(Catalog); ok {
			all = append(all, c.Resources()...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Abort notifies every Aborter, in order, that an admission failed after Prepare.
func (b *Bus) Abort(ctx context.Context, admissionID string) {
	for i := range b.entries {
		e := &b.entries[i]
		if a, ok := e.Provider.(Aborter); ok {
			b.notify(ctx, e, func(ctx context.Context) { a.Abort(ctx, admissionID) })
		}
	}
}

// Finished returns the claims that are no longer needed when a container of a pod starts, from
// every Finisher, in order.
func (b *Bus) Finished(pod *ledger.Pod, starting string) []ledger.Claim {
	var all []ledger.Claim
	for i := range b.entries {
		if f, ok := b.entries[i].Provider.(Finisher); ok {
			all = append(all, f.Finished(pod, starting)...)
		}
	}
	return all
}

// Released notifies every Releaser, in order, which of its claims a committed
// removal or start gave back.
func (b *Bus) Released(ctx context.Context, claims []ledger.Claim) {
	for i := range b.entries {
		e := &b.entries[i]
		r, ok := e.Provider.(Releaser)
		if !ok {
			continue
		}
		name := e.Provider.Name()
		var own []ledger.Claim
		for _, c := range claims {
			if c.Provider == name {
				own = append(own, c)
			}
		}
		if len(own) > 0 {
			b.notify(ctx, e, func(ctx context.Context) { r.Released(ctx, own) })
		}
	}
}

// notify runs a call without an answer under the provider's deadline.
func (b *Bus) notify(ctx context.Context, e *Entry, do func(context.Context)) {
	if e.Deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = b.withTimeout(ctx, e.Deadline)
		defer cancel()
	}
	do(ctx)
}
