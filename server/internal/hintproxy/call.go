package hintproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/wire"
)

// call makes one call of an admission that has an effect at the provider. It makes no call
// while the provider is away or suspended. Failures count towards suspension; refusals do
// not. The error names the provider. If the caller's own context has ended, the call is
// canceled and does not count.
func (p *proxy) call(ctx context.Context, method string, do func(context.Context) error) error {
	allowed, err := p.allowance(ctx, method)
	if err != nil {
		return err
	}
	call, err := p.enter(method)
	if err != nil {
		return err
	}
	began := p.parts.Now()
	err = p.within(ctx, method, allowed.limit, do)
	counts := p.ends(allowed, began)
	p.leave(call, ctx.Err() != nil || !counts, err)
	return err
}

// callProvider makes a call without an effect at the provider. If the caller's deadline is shorter
// than the provider's, the caller gets an error and the call continues. So a short deadline
// neither counts as a failure of a provider that answers in time, nor hides a provider that
// does not.
func callProvider[T any](ctx context.Context, p *proxy, method string, do func(context.Context) (T, error)) (T, error) {
	type result struct {
		answer T
		err    error
	}
	allowed, err := p.allowance(ctx, method)
	if err != nil {
		return *new(T), err
	}
	call, err := p.enter(method)
	if err != nil {
		return *new(T), err
	}
	began := p.parts.Now()
	calling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	done, left := make(chan result, 1), make(chan bool, 1)
	go func() {
		defer giveUp()
		var r result
		r.err = p.within(calling, method, allowed.limit, func(ctx context.Context) (err error) { r.answer, err = do(ctx); return err })
		counts := p.ends(allowed, began)
		p.leave(call, calling.Err() != nil || !counts, r.err)
		done <- r
		if <-left {
			p.unattended(-1)
		}
	}()
	select {
	case r := <-done:
		left <- false
		return r.answer, r.err
	case <-ctx.Done():
		goesOn := p.unattended(1)
		if !goesOn {
			giveUp()
		}
		left <- goesOn
		return *new(T), p.callerGone(ctx, method)
	}
}

// unattended counts calls that continue without their callers. It returns false, and does
// not count, if there are already enough to open the breaker.
func (p *proxy) unattended(more int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if more > 0 && p.alone >= p.config.Breaker.Failures {
		return false
	}
	p.alone += more
	return true
}

// leave reports the end of a call to the breaker.
func (p *proxy) leave(call breaker.Call, gaveUp bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil, errdefs.ClassOf(err) == errdefs.Refused:
		call.Answered()
	case gaveUp:
		call.GaveUp()
	default:
		call.Failed(p.parts.Now(), err.Error())
	}
}

// enter returns an error if the provider must not be called now.
func (p *proxy) enter(method string) (breaker.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.introduced {
		return breaker.Call{}, away(p.Name(), "(%s): %s", method, p.away)
	}
	call, err := p.breaker.Begin(p.parts.Now())
	if err != nil {
		return breaker.Call{}, away(p.Name(), "(%s): %w", method, err)
	}
	return call, nil
}

// within makes a call that may take a time, and gives its error a class. The caller's deadline is not
// passed on, because the provider's failure at that moment would count against the provider.
func (p *proxy) within(ctx context.Context, method string, limit time.Duration, do func(context.Context) error) error {
	calling, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, giveUp)()
	limited, cancel := p.parts.WithTimeout(calling, limit)
	defer cancel()
	err := do(limited)
	own := new(errdefs.Error)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case ctx.Err() != nil:
		return p.callerGone(ctx, method)
	case limited.Err() != nil, status.Code(err) == codes.DeadlineExceeded:
		return p.failed(errdefs.Deadline, "did not answer %s within %s", method, limit)
	case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max"):
		return p.wrongAnswer("", "it answered %s with more than %d bytes", method, p.config.MaxAnswerBytes)
	case status.Code(err) == codes.Internal && strings.Contains(err.Error(), wire.TooMany):
		return p.wrongAnswer("", "it answered %s with more than %d items of lists and entries of maps", method, maxAnswerElements)
	}
	return p.failed(errdefs.Unavailable, "failed at %s: %s", method, clip(status.Convert(err).Message()))
}

// callerGone is the error of a call whose caller has ended its context.
func (p *proxy) callerGone(ctx context.Context, method string) error {
	return fmt.Errorf("%s of provider %s: %w", method, p.Name(), context.Cause(ctx))
}

// ProviderAway is the condition of a pod that is deferred because a provider is away or
// suspended.
const ProviderAway = "ProviderAway"

// awayError is the error for a provider that cannot be called now. It is temporary.
type awayError struct{ error }

// Unwrap returns the error that names the provider.
func (e awayError) Unwrap() error { return e.error }

// Waits implements hint.Waiter.
func (awayError) Waits() hint.Wait { return hint.Wait{Condition: ProviderAway} }

// away returns the error for a provider that cannot be called.
func away(provider, format string, args ...any) error {
	err := fmt.Errorf("provider %s cannot be called "+format, append([]any{provider}, args...)...)
	return awayError{&errdefs.Error{Class: errdefs.Unavailable, Message: err.Error(), Provider: provider, Err: err}}
}

// failed returns an error for a failure of the provider.
func (p *proxy) failed(class errdefs.Class, format string, args ...any) error {
	err := fmt.Errorf("provider %s "+format, append([]any{p.Name()}, args...)...)
	return &errdefs.Error{Class: class, Message: err.Error(), Provider: p.Name(), Err: err}
}

// wrongAnswer returns the error for an invalid answer.
func (p *proxy) wrongAnswer(resource, format string, args ...any) error {
	err := errdefs.Corruptf("provider %s cannot be believed: %s", p.Name(), clip(fmt.Sprintf(format, args...)))
	err.Provider, err.Resource = p.Name(), resource
	return err
}

// unreadable returns the error for a message that cannot be converted.
func (p *proxy) unreadable(method string, err error) error {
	text := err.Error()
	if fe := new(errdefs.Error); errors.As(err, &fe) && len(fe.Fields) > 0 {
		text = fe.Fields[0].String()
	}
	return p.wrongAnswer("", "its answer to %s has %s", method, text)
}

// maxText limits a provider's texts, because traces contain them and the ledger stores
// traces.
const maxText = 512

// clip shortens a foreign text and makes it valid UTF-8.
func clip(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return strings.ToValidUTF8(text, "")
}
