// Package breaker keeps calls away from a party that does not answer, so that it does
// not cost every caller a deadline.
//
// Words:
//
//   - party: what is called: a device plugin, a provider outside.
//   - probe: the one call that is let through after a rest, to find out whether the
//     party answers again.
//   - rest: how long nobody calls. It doubles with each probe that fails.
//
// The states and what leads from one to the next:
//
//	state    begin                 answered  failed                     gave up  reconnected
//	closed   call                  closed    closed; the Nth in a row:  closed   closed
//	                                         resting
//	resting  refused; after the    closed    resting                    resting  due
//	         rest: as due
//	due      probe, then probing   closed    due                        due      due
//	probing  refused               closed    of the probe: resting      of the   probing
//	                                         of another: probing        probe:
//	                                                                    due
//
// Any answer closes the breaker, also one to a call from before it opened. A call from
// before that fails late changes nothing.
//
// The package has no clock and no lock: the time is passed in, and the owner of a
// breaker guards it.
package breaker

import (
	"fmt"
	"time"
)

// Config says when a party is left alone.
type Config struct {
	// Failures in a row that open the breaker; 0 means 3.
	Failures int
	// Rest is how long the party is left alone the first time; 0 means 5 s.
	Rest time.Duration
	// Longest is the longest rest; 0 means 1 min.
	Longest time.Duration
}

// WithDefaults returns the configuration with the defaults for what is 0.
func (c Config) WithDefaults() Config {
	if c.Failures == 0 {
		c.Failures = 3
	}
	if c.Rest == 0 {
		c.Rest = 5 * time.Second
	}
	if c.Longest == 0 {
		c.Longest = time.Minute
	}
	return c
}

// State of a breaker.
type State int

// The states.
const (
	Closed State = iota
	Resting
	Due
	Probing
)

var names = [...]string{Closed: "closed", Resting: "resting", Due: "due", Probing: "probing"}

// String names the state.
func (s State) String() string { return names[s] }

// event is what happens to a breaker.
type event int

const (
	begin event = iota
	answered
	failed      // a call, not the probe
	failedOften // as failed, and it is the Nth in a row
	probeFailed
	gaveUp // a call, not the probe
	probeGaveUp
	reconnected
	events
)

// table has the next state for each state and event. An event of the probe happens
// in Probing, or after an answer to another call has closed the breaker.
var table = [...][events]State{
	Closed:  {begin: Closed, answered: Closed, failed: Closed, failedOften: Resting, probeFailed: Closed, gaveUp: Closed, probeGaveUp: Closed, reconnected: Closed},
	Resting: {begin: Resting, answered: Closed, failed: Resting, failedOften: Resting, probeFailed: Resting, gaveUp: Resting, probeGaveUp: Resting, reconnected: Due},
	Due:     {begin: Probing, answered: Closed, failed: Due, failedOften: Due, probeFailed: Resting, gaveUp: Due, probeGaveUp: Due, reconnected: Due},
	Probing: {begin: Probing, answered: Closed, failed: Probing, failedOften: Probing, probeFailed: Resting, gaveUp: Probing, probeGaveUp: Due, reconnected: Probing},
}

// Breaker is a state machine for one party.
type Breaker struct {
	config   Config
	state    State
	failures int           // in a row
	rest     time.Duration // the next one
	until    time.Time     // of the last rest
	last     string        // what the last failure said
}

// New makes a closed breaker.
func New(c Config) *Breaker { return &Breaker{config: c.WithDefaults()} }

// OpenError is returned by Begin where the party is left alone.
type OpenError struct {
	// Failures in a row, and what the last one said.
	Failures int
	Last     string
	// Until is the time of the next probe; zero while one is under way.
	Until time.Time
}

// Error tells when the party is called again.
func (e *OpenError) Error() string {
	if e.Until.IsZero() {
		return fmt.Sprintf("it is suspended after %d failures in a row while one call tries whether it works again", e.Failures)
	}
	return fmt.Sprintf("it is suspended until %s after %d failures in a row, the last: %s", e.Until.UTC().Format(time.RFC3339), e.Failures, e.Last)
}

// Call is a call that may be made. Its end is told to the breaker once.
type Call struct {
	breaker *Breaker
	probe   bool
}

// Begin asks whether a call may be made now. The error is an *OpenError.
func (b *Breaker) Begin(now time.Time) (Call, error) {
	before := b.State(now)
	b.state = table[before][begin]
	if before == Resting || before == Probing {
		e := &OpenError{Failures: b.failures, Last: b.last}
		if before == Resting {
			e.Until = b.until
		}
		return Call{}, e
	}
	return Call{breaker: b, probe: b.state == Probing}, nil
}

// Answered notes that the party has answered, whatever it said.
func (c Call) Answered() {
	b := c.breaker
	b.state = table[b.state][answered]
	b.failures, b.rest, b.last = 0, 0, ""
}

// Failed notes that the party has not answered, and what is to be told of that. It
// reports whether the breaker has opened by that.
func (c Call) Failed(now time.Time, text string) (opened bool) {
	b, what := c.breaker, failed
	before := b.state
	switch {
	case c.probe:
		what = probeFailed
		b.failures++
	case before == Closed:
		if b.failures++; b.failures >= b.config.Failures {
			what = failedOften
		}
	}
	b.last = text
	b.state = table[before][what]
	if b.state != Resting || before == Resting {
		return false
	}
	if b.rest == 0 {
		b.rest = b.config.Rest
	}
	b.until = now.Add(b.rest)
	b.rest = min(2*b.rest, b.config.Longest)
	return true
}

// GaveUp notes that the caller gave up before there was an answer, which says nothing
// about the party.
func (c Call) GaveUp() {
	what := gaveUp
	if c.probe {
		what = probeGaveUp
	}
	c.breaker.state = table[c.breaker.state][what]
}

// Reconnected lets a probe through at once: the process that answers now may be
// another than the one that failed.
func (b *Breaker) Reconnected() { b.state = table[b.state][reconnected] }

// State returns the state at a time.
func (b *Breaker) State(now time.Time) State {
	if b.state == Resting && !now.Before(b.until) {
		return Due
	}
	return b.state
}

// Open reports whether calls are refused or only tried.
func (b *Breaker) Open() bool { return b.state != Closed }

// Until returns the end of the last rest.
func (b *Breaker) Until() time.Time { return b.until }

// Last returns what the last failure said; empty after an answer.
func (b *Breaker) Last() string { return b.last }
