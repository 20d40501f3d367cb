// Package breaker suspends calls to a party that does not respond, so that not every caller waits
// for a deadline.
//
// Words:
//
//   - party: the target of the calls: a device plugin or an external provider.
//   - probe: the one call that is permitted after a rest, to find out whether the
//     party responds again.
//   - rest: the time without calls. It doubles with each failed probe.
//
// The states and transitions:
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
// A response to any call closes the breaker, even to a call from before it opened. A late failure
// of a call from before it opened changes nothing.
//
// The package has no clock and no lock. Times are parameters, and the owner of a breaker holds a
// lock.
package breaker

import (
	"fmt"
	"time"
)

// Config defines when calls are suspended, and for how long.
type Config struct {
	// Failures in a row that open the breaker; 0 means 3.
	Failures int
	// Rest is how long the party is left alone the first time; 0 means 5 s.
	Rest time.Duration
	// Longest is the longest rest; 0 means 1 min.
	Longest time.Duration
}

// WithDefaults returns the configuration with defaults for zero values.
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
	Closed: {begin: Closed, answered: Closed, failed: Closed, failedOften: Resting, probeFailed: Closed, gaveUp: Closed,
		probeGaveUp: Closed, reconnected: Closed},
	Resting: {begin: Resting, answered: Closed, failed: Resting, failedOften: Resting, probeFailed: Resting, gaveUp: Resting,
		probeGaveUp: Resting, reconnected: Due},
	Due: {begin: Probing, answered: Closed, failed: Due, failedOften: Due, probeFailed: Resting, gaveUp: Due, probeGaveUp: Due,
		reconnected: Due},
	Probing: {begin: Probing, answered: Closed, failed: Probing, failedOften: Probing, probeFailed: Resting, gaveUp: Probing,
		probeGaveUp: Due, reconnected: Probing},
}

// Breaker is a state machine for one party.
type Breaker struct {
	config   Config
	state    State
	failures int           // in a row
	rest     time.Duration // the next one
	until    time.Time     // of the last rest
	last     string        // the text of the last failure
}

// New makes a closed breaker.
func New(c Config) *Breaker { return &Breaker{config: c.WithDefaults()} }

// OpenError is returned by Begin where the party is left alone.
type OpenError struct {
	// Failures in a row, and the text of the last one.
	Failures int
	Last     string
	// Until is the time of the next probe; zero while one is under way.
	Until time.Time
}

// Error describes when the party is called again.
func (e *OpenError) Error() string {
	if e.Until.IsZero() {
		return fmt.Sprintf("it is suspended after %d failures in a row while one call tries whether it works again", e.Failures)
	}
	return fmt.Sprintf("it is suspended until %s after %d failures in a row, the last: %s", e.Until.UTC().Format(time.RFC3339),
		e.Failures, e.Last)
}

// Call is a permitted call. Report its end to the breaker once.
type Call struct {
	breaker *Breaker
	probe   bool
}

// Begin permits or refuses a call. The error is an *OpenError.
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

// Answered records a response of the party, including an error response.
func (c Call) Answered() {
	b := c.breaker
	b.state = table[b.state][answered]
	b.failures, b.rest, b.last = 0, 0, ""
}

// Failed records a missing response, with a text for later errors. It reports whether the breaker
// has opened.
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

// GaveUp records that the caller canceled the call before a response. This does not count as a
// failure.
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

// Last returns the text of the last failure; empty after a response.
func (b *Breaker) Last() string { return b.last }
