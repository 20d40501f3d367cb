package publish

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var begin = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestTransitions is the table, cell by cell, and whether the moment of the write changes.
func TestTransitions(t *testing.T) {
	for _, c := range []struct {
		from  phase
		e     event
		to    phase
		moved bool
	}{
		{clean, equals, clean, false}, {clean, differs, soon, true}, {clean, differsMuch, spread, true}, {clean, written, clean, false},
		{clean, failed, retry, true},
		{soon, equals, clean, false}, {soon, differs, soon, false}, {soon, differsMuch, spread, true}, {soon, written, clean, false},
		{soon, failed, retry, true},
		{spread, equals, clean, false}, {spread, differs, spread, false}, {spread, differsMuch, spread, false},
		{spread, written, clean, false}, {spread, failed, retry, true},
		{retry, equals, retry, false}, {retry, differs, retry, false}, {retry, differsMuch, retry, false}, {retry, written, clean, false},
		{retry, failed, retry, true},
	} {
		p := Pace{Spread: time.Minute, phase: c.from, due: begin}
		p.on(c.e, begin.Add(time.Second), 0.5)
		if _, waits := p.Due(); p.phase != c.to || p.due.After(begin) != c.moved || waits != (c.to != clean) {
			t.Errorf("phase %d, event %d: phase %d due %s, want phase %d", c.from, c.e, p.phase, p.due.Sub(begin), c.to)
		}
	}
}

// TestPace draws histories: two writes are at least a second apart, a minor change waits for no more
// than a second after that, a major one for no more than the spread, and so does a repeated write.
func TestPace(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := Pace{Spread: DefaultSpread}
		now, random := begin, rapid.Float64Range(0, 0.999999)
		var last time.Time
		for range rapid.IntRange(1, 60).Draw(t, "events") {
			due, waits := p.Due()
			if waits && rapid.Bool().Draw(t, "wait for the moment") {
				if due.After(now) {
					now = due
				}
				if !last.IsZero() && now.Sub(last) < Interval {
					t.Fatalf("two writes within %s", now.Sub(last))
				}
				last = now
				var err error
				if rapid.Bool().Draw(t, "fails") {
					err = errors.New("away")
				}
				p.Written(now, err, random.Draw(t, "random"))
			} else {
				now = now.Add(time.Duration(rapid.Int64Range(0, int64(2*time.Second)).Draw(t, "passes")))
				before := p.phase
				p.Compared(now, Change(rapid.IntRange(int(Same), int(Major)).Draw(t, "change")), random.Draw(t, "random"))
				if due, waits := p.Due(); waits && before == clean && p.phase == soon && due.Sub(now) > 2*Interval {
					t.Fatalf("a minor change waits for %s", due.Sub(now))
				}
			}
			if due, waits := p.Due(); waits && due.Sub(now) > DefaultSpread+Interval {
				t.Fatalf("in phase %d a write waits for %s", p.phase, due.Sub(now))
			}
		}
	})
}

// TestManyNodesSpread: 5,000 nodes change at once, as after an upgrade, or find an API server that has
// been away. Their writes fill more than a minute, and no second has more than three times its share.
func TestManyNodesSpread(t *testing.T) {
	const nodes = 5000
	for name, pace := range map[string]Pace{
		"a major change":      {Spread: DefaultSpread},
		"the server was away": {Spread: DefaultSpread, phase: retry, due: begin, failures: 20},
	} {
		random := rand.New(rand.NewPCG(1, 2))
		var at []time.Duration
		perSecond := map[int]int{}
		for range nodes {
			p := pace
			if p.phase == retry {
				p.Written(begin, errors.New("away"), random.Float64())
			} else {
				p.Compared(begin, Major, random.Float64())
			}
			due, _ := p.Due()
			at = append(at, due.Sub(begin))
			perSecond[int(due.Sub(begin)/time.Second)]++
		}
		slices.Sort(at)
		if span := at[nodes-1] - at[0]; span < time.Minute {
			t.Errorf("%s: all writes within %s", name, span)
		}
		most := 0
		for _, n := range perSecond {
			most = max(most, n)
		}
		if most > 3*nodes/int(DefaultSpread/time.Second) {
			t.Errorf("%s: %d writes in one second", name, most)
		}
	}
}

// later is an error of an API server that wants no request for some time.
type later struct{ time.Duration }

func (later) Error() string               { return "too many requests" }
func (l later) RetryAfter() time.Duration { return l.Duration }

// TestPaceWaitsAsAsked: a write that the API server has put off is not repeated before.
func TestPaceWaitsAsAsked(t *testing.T) {
	for _, wait := range []time.Duration{0, 5 * time.Second, 5 * time.Minute} {
		p := Pace{Spread: DefaultSpread}
		p.Compared(begin, Major, 0)
		p.Written(begin, later{wait}, 0.5)
		if due, waits := p.Due(); !waits || due.Before(begin.Add(wait)) || wait > 0 && due.After(begin.Add(2*wait)) {
			t.Errorf("the API server wants no request for %s, and the next one is after %s", wait, due.Sub(begin))
		}
	}
}
