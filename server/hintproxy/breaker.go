package hintproxy

import (
	"fmt"
	"time"
)

// Breaker says when a provider that fails is left alone, so that it does not cost
// every admission its deadline.
type Breaker struct {
	// Failures in a row that suspend the provider; 0 means 3.
	Failures int
	// Rest is how long it is left alone the first time; 0 means 5 s. Each time
	// that it fails again at once the rest is twice as long.
	Rest time.Duration
	// Longest is the longest rest; 0 means 1 min.
	Longest time.Duration
}

func (b Breaker) withDefaults() Breaker {
	if b.Failures == 0 {
		b.Failures = 3
	}
	if b.Rest == 0 {
		b.Rest = 5 * time.Second
	}
	if b.Longest == 0 {
		b.Longest = time.Minute
	}
	return b
}

// breaker is closed (calls pass), open (they do not, until a time) or half open
// (one call may try). Its owner's lock guards it.
type breaker struct {
	Breaker
	failures int
	rest     time.Duration // the next one
	until    time.Time     // zero: closed
	trying   bool          // half open, and the one call is under way
	last     string        // the last failure
}

// enter returns an error if no call may be made now; otherwise leave must follow.
func (b *breaker) enter(now time.Time) error {
	switch {
	case b.until.IsZero():
		return nil
	case now.Before(b.until):
		return fmt.Errorf("it is suspended until %s after %d failures in a row, the last: %s",
			b.until.UTC().Format(time.RFC3339), b.failures, b.last)
	case b.trying:
		return fmt.Errorf("it is suspended after %d failures in a row while one call tries whether it works again", b.failures)
	}
	b.trying = true
	return nil
}

// success closes the breaker.
func (b *breaker) success() { *b = breaker{Breaker: b.Breaker} }

// unknown ends a call that says nothing about the provider.
func (b *breaker) unknown() { b.trying = false }

// failure notes one more; it opens the breaker if there were enough.
func (b *breaker) failure(now time.Time, text string) {
	b.trying, b.last = false, text
	b.failures++
	if b.failures < b.Failures {
		return
	}
	if b.rest == 0 {
		b.rest = b.Rest
	}
	b.until = now.Add(b.rest)
	b.rest = min(2*b.rest, b.Longest)
}

// comeBack lets one call try at once: the process that answers now may be another
// than the one that failed.
func (b *breaker) comeBack(now time.Time) {
	if b.open() && now.Before(b.until) {
		b.until = now
	}
}

// open reports whether calls are refused or only tried.
func (b *breaker) open() bool { return !b.until.IsZero() }
