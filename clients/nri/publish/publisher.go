package publish

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// lookEvery is the interval of comparisons without an event, because devices change without one.
	lookEvery = 30 * time.Second
	// verifyEvery is the interval after which the object is read again, because others can change
	// it. Half of it is random.
	verifyEvery = 20 * time.Minute
	// checkedEvery is the age at which an object that is as it should be is written again, at a moment of the spread, so that readers see
	// that somebody compares it.
	checkedEvery = 10 * time.Minute
)

// Store is the API server.
type Store interface {
	// Get returns the object; nil if there is none.
	Get(ctx context.Context) (*Object, error)
	// Apply writes the object.
	Apply(ctx context.Context, o *Object) error
}

// Config configures a Publisher.
type Config struct {
	Store Store
	// Want computes the object as it should be.
	Want func(ctx context.Context) (*Object, error)
	// Changed receives an element when Want may have another answer.
	Changed <-chan struct{}
	// Spread is the longest delay of a major change.
	Spread time.Duration
	// Wrote is called after each write.
	Wrote func(err error)
	Log   *slog.Logger
}

// Publisher writes the object.
type Publisher struct {
	Config
	pace  Pace
	have  *Object // at the API server; nil if there is none
	known bool    // have is known
	// look and verify are when to compare next, and when to read the object again.
	look, verify, looked time.Time
	failed               map[string]bool // failures that are in the log
}

// NewPublisher returns a publisher that has done nothing.
func NewPublisher(c Config) *Publisher {
	return &Publisher{Config: c, pace: Pace{Spread: c.Spread}, failed: map[string]bool{}}
}

// Run publishes until the context ends.
func (p *Publisher) Run(ctx context.Context) {
	p.look = time.Now().Add(part(Interval))
	p.verify = p.look.Add(verifyEvery)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(max(time.Until(p.next()), 0))
		select {
		case <-ctx.Done():
			return
		case <-p.Changed:
			if !p.looked.IsZero() {
				p.look = earlier(p.look, p.looked.Add(Interval))
			}
		case <-timer.C:
			p.step(ctx)
		}
	}
}

// next is the time of the next step.
func (p *Publisher) next() time.Time {
	due, waiting := p.pace.Due()
	switch {
	case !waiting:
		return earlier(p.look, p.verify)
	case !p.known:
		return due // the API server has failed
	}
	return earlier(earlier(p.look, p.verify), due)
}

// step compares, reads or writes, if it is time.
func (p *Publisher) step(ctx context.Context) {
	now := time.Now()
	if !p.verify.After(now) {
		p.verify = now.Add(verifyEvery/2 + part(verifyEvery/2))
		if _, waiting := p.pace.Due(); !waiting {
			p.known = false
		}
	}
	if !p.known {
		have, err := p.Store.Get(ctx)
		if p.report(ctx, "read the NodeResourceTopology object", err); err != nil {
			p.pace.Written(time.Now(), err, rand.Float64())
			return
		}
		p.have, p.known = have, true
	}
	want, err := p.Want(ctx)
	p.looked = time.Now()
	p.look = p.looked.Add(lookEvery)
	if p.report(ctx, "get the free resources of the NUMA nodes", err); err != nil {
		p.look = p.looked.Add(Interval)
		if p.due() {
			p.pace.Written(p.looked, err, rand.Float64())
		}
		return
	}
	want.check(p.looked)
	change := Compare(p.have, want)
	if change == Same {
		if age := p.looked.Sub(p.have.checked()); age < 0 || age >= checkedEvery {
			change = Major
		}
	}
	if change == Same && p.due() {
		p.pace.Written(p.looked, nil, 0) // by the write whose outcome was unknown
	}
	if p.pace.Compared(p.looked, change, rand.Float64()); p.due() {
		p.write(ctx, want)
	}
}

// due reports whether it is time to write.
func (p *Publisher) due() bool {
	due, waiting := p.pace.Due()
	return waiting && !due.After(p.looked)
}

func (p *Publisher) write(ctx context.Context, want *Object) {
	err := p.Store.Apply(ctx, want)
	if ctx.Err() != nil {
		return
	}
	p.Wrote(err)
	p.report(ctx, "write the NodeResourceTopology object", err)
	p.pace.Written(time.Now(), err, rand.Float64())
	if p.known = err == nil; p.known {
		p.have = want
	}
}

// report logs a failure once, and its end.
func (p *Publisher) report(ctx context.Context, what string, err error) {
	switch {
	case ctx.Err() != nil:
		return
	case err != nil && !p.failed[what]:
		p.Log.Warn("the scheduler may see old amounts of free resources of the NUMA nodes: cannot "+what, "error", err)
	case err == nil && p.failed[what]:
		p.Log.Info("again possible: " + what)
	}
	p.failed[what] = err != nil
}

// part is a random part of a duration.
func part(d time.Duration) time.Duration { return time.Duration(rand.Float64() * float64(d)) }

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
