package hintproxy

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/breaker"
)

// call makes one call of an admission. A provider that is away or suspended is not
// called at all; each failure counts, a refusal is none. The error names the
// provider, except where the caller's own context has ended.
func (p *proxy) call(ctx context.Context, method string, do func(context.Context) error) error {
	call, err := p.enter()
	if err != nil {
		return away(p.Name(), "(%s): %w", method, err)
	}
	err = p.within(ctx, method, do)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		call.GaveUp()
	case err == nil, errdefs.ClassOf(err) == errdefs.Refused:
		call.Answered()
	default:
		call.Failed(p.parts.Now(), err.Error())
	}
	return err
}

// enter returns why the provider cannot be called now.
func (p *proxy) enter() (breaker.Call, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.introduced {
		return breaker.Call{}, errors.New(p.away)
	}
	return p.breaker.Begin(p.parts.Now())
}

// within makes a call under the provider's deadline and gives its error a class.
func (p *proxy) within(ctx context.Context, method string, do func(context.Context) error) error {
	limited, cancel := p.parts.WithTimeout(ctx, p.registration.Deadline)
	defer cancel()
	err := do(limited)
	own := new(errdefs.Error)
	switch {
	case err == nil:
		return nil
	case errors.As(err, &own):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%s of provider %s: %w", method, p.Name(), context.Cause(ctx))
	case limited.Err() != nil, status.Code(err) == codes.DeadlineExceeded:
		return p.failed(errdefs.Deadline, "did not answer %s within %s", method, p.registration.Deadline)
	case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger than max"):
		return p.lie("", "it answered %s with more than %d bytes", method, p.config.MaxAnswerBytes)
	}
	return p.failed(errdefs.Unavailable, "failed at %s: %s", method, clip(status.Convert(err).Message()))
}

// ProviderAway is the condition of a pod that waits for a provider that is away or
// suspended.
const ProviderAway = "ProviderAway"

// awayError says that a provider cannot be asked now. Time may heal it.
type awayError struct{ error }

// Unwrap returns the error that names the provider.
func (e awayError) Unwrap() error { return e.error }

// Waits implements hint.Waiter.
func (awayError) Waits() hint.Wait { return hint.Wait{Condition: ProviderAway} }

// away makes the error for a provider that cannot be asked.
func away(provider, format string, args ...any) error {
	err := fmt.Errorf("provider %s cannot be asked "+format, append([]any{provider}, args...)...)
	return awayError{&errdefs.Error{Class: errdefs.Unavailable, Message: err.Error(), Provider: provider, Err: err}}
}

// failed makes an error of the provider's.
func (p *proxy) failed(class errdefs.Class, format string, args ...any) error {
	err := fmt.Errorf("provider %s "+format, append([]any{p.Name()}, args...)...)
	return &errdefs.Error{Class: class, Message: err.Error(), Provider: p.Name(), Err: err}
}

// lie is the error for an answer that breaks the rules.
func (p *proxy) lie(resource, format string, args ...any) error {
	err := errdefs.Corruptf("provider %s cannot be believed: %s", p.Name(), clip(fmt.Sprintf(format, args...)))
	err.Provider, err.Resource = p.Name(), resource
	return err
}

// unreadable is the lie of a message that convert refuses.
func (p *proxy) unreadable(method string, err error) error {
	text := err.Error()
	if fe := new(errdefs.Error); errors.As(err, &fe) && len(fe.Fields) > 0 {
		text = fe.Fields[0].String()
	}
	return p.lie("", "its answer to %s has %s", method, text)
}

// maxText is how long a provider's words may be before they are cut: they end up
// in traces, which the ledger keeps.
const maxText = 512

// clip cuts a text of somebody else's and makes it valid UTF-8.
func clip(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + "..."
	}
	return strings.ToValidUTF8(text, "")
}
