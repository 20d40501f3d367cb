package publish

import (
	"errors"
	"time"
)

const (
	// Interval is the least time between two writes, and the longest delay of a minor change.
	Interval = time.Second
	// DefaultSpread is the longest delay of a major change. Writes of thousands of nodes that change
	// at once fill it evenly.
	DefaultSpread = 75 * time.Second
)

// phase is the state of the object at the API server.
type phase int

const (
	// clean: it is as it should be.
	clean phase = iota
	// soon: it has a minor difference and is written at the next moment.
	soon
	// spread: it has a major difference and is written at a moment of the spread.
	spread
	// retry: the last write failed.
	retry
)

// event is what happens to the object.
type event int

const (
	equals event = iota // it was compared
	differs
	differsMuch
	written
	failed
)

// transitions has the phase after each event. A write that failed may have succeeded, so a
// comparison does not end the phase retry. A moment of the spread is not given up for an earlier one.
var transitions = [...][5]phase{
	clean:  {equals: clean, differs: soon, differsMuch: spread, written: clean, failed: retry},
	soon:   {equals: clean, differs: soon, differsMuch: spread, written: clean, failed: retry},
	spread: {equals: clean, differs: spread, differsMuch: spread, written: clean, failed: retry},
	retry:  {equals: retry, differs: retry, differsMuch: retry, written: clean, failed: retry},
}

// eventOf is the event of a comparison.
var eventOf = [...]event{Same: equals, Minor: differs, Major: differsMuch}

// Pace decides when the object is written. Random numbers, at least 0 and below 1, come from the
// caller.
type Pace struct {
	// Spread is the longest delay of a major change, and of a repeated write.
	Spread time.Duration

	phase    phase
	due      time.Time
	last     time.Time // the last write, successful or not
	failures int
}

// Compared notes how the object differs.
func (p *Pace) Compared(now time.Time, c Change, random float64) { p.on(eventOf[c], now, random) }

// Written notes the end of a write, or of a read that failed.
func (p *Pace) Written(now time.Time, err error, random float64) {
	p.last = now
	if err == nil {
		p.on(written, now, random)
	} else {
		p.on(failed, now, random)
		var asks interface{ RetryAfter() time.Duration } // the API server's
		if errors.As(err, &asks) {
			wait := asks.RetryAfter()
			if first := now.Add(wait + time.Duration(random*float64(wait))); p.due.Before(first) {
				p.due = first
			}
		}
	}
}

// Due returns when to write next; false if there is nothing to write.
func (p *Pace) Due() (at time.Time, ok bool) { return p.due, p.phase != clean }

func (p *Pace) on(e event, now time.Time, random float64) {
	next := transitions[p.phase][e]
	if next == p.phase && e != failed {
		return // the moment stays
	}
	p.phase = next
	switch e {
	case written:
		p.failures = 0
	case failed:
		p.failures++
	}
	delay := time.Duration(0)
	switch next {
	case clean:
		return
	case soon:
		delay = Interval
	case spread:
		delay = p.Spread
	case retry:
		delay = p.backoff()
	}
	p.due = now.Add(time.Duration(random * float64(delay)))
	if first := p.last.Add(Interval); p.due.Before(first) && !p.last.IsZero() {
		p.due = first
	}
}

// backoff doubles with each failure, up to the spread: when an API server comes back, the writes of
// all nodes fill the spread.
func (p *Pace) backoff() time.Duration {
	const most = 16 // doublings
	return max(min(2*Interval<<min(p.failures-1, most), p.Spread), Interval)
}
