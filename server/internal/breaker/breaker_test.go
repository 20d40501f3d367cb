package breaker

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// in returns a breaker that opens at the second failure in a row, in a state at the
// time 10 s, and the call that brought it there: in Closed one of two that are under
// way, in Probing the probe. early is a call from before it opened.
func in(t *testing.T, state State) (b *Breaker, early, last Call, now time.Time) {
	t.Helper()
	b = New(Config{Failures: 2, Rest: 10 * time.Second, Longest: 15 * time.Second})
	start := time.Unix(0, 0)
	must := func(c Call, err error) Call {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	early = must(b.Begin(start))
	now = start.Add(10 * time.Second)
	if state == Closed {
		return b, early, must(b.Begin(now)), now
	}
	for range 2 {
		last = must(b.Begin(start))
		last.Failed(start, "no")
	}
	switch state {
	case Resting:
		now = now.Add(-1)
	case Probing:
		last = must(b.Begin(now))
	}
	return b, early, last, now
}

// TestTable goes through the table cell by cell.
func TestTable(t *testing.T) {
	t.Parallel()
	type outcome struct {
		next    State
		refused bool
	}
	begins := func(b *Breaker, _, _ Call, now time.Time) error { _, err := b.Begin(now); return err }
	cells := map[string]struct {
		event func(b *Breaker, early, last Call, now time.Time) error
		want  map[State]outcome
	}{
		"begin": {begins, map[State]outcome{
			Closed: {next: Closed}, Resting: {Resting, true}, Due: {next: Probing}, Probing: {Probing, true},
		}},
		"answered": {func(_ *Breaker, early, _ Call, _ time.Time) error { early.Answered(); return nil }, map[State]outcome{
			Closed: {next: Closed}, Resting: {next: Closed}, Due: {next: Closed}, Probing: {next: Closed},
		}},
		"the probe answered": {func(_ *Breaker, _, last Call, _ time.Time) error { last.Answered(); return nil }, map[State]outcome{
			Probing: {next: Closed},
		}},
		"failed": {func(_ *Breaker, early, _ Call, now time.Time) error { early.Failed(now, "no"); return nil }, map[State]outcome{
			Closed: {next: Closed}, Resting: {next: Resting}, Due: {next: Due}, Probing: {next: Probing},
		}},
		"failed twice": {func(_ *Breaker, early, last Call, now time.Time) error {
			early.Failed(now, "no")
			last.Failed(now, "no")
			return nil
		}, map[State]outcome{Closed: {next: Resting}}},
		"the probe failed": {func(_ *Breaker, _, last Call, now time.Time) error { last.Failed(now, "no"); return nil }, map[State]outcome{
			Probing: {next: Resting},
		}},
		"gave up": {func(_ *Breaker, early, _ Call, _ time.Time) error { early.GaveUp(); return nil }, map[State]outcome{
			Closed: {next: Closed}, Resting: {next: Resting}, Due: {next: Due}, Probing: {next: Probing},
		}},
		"the probe gave up": {func(_ *Breaker, _, last Call, _ time.Time) error { last.GaveUp(); return nil }, map[State]outcome{
			Probing: {next: Due},
		}},
		"reconnected": {func(b *Breaker, _, _ Call, _ time.Time) error { b.Reconnected(); return nil }, map[State]outcome{
			Closed: {next: Closed}, Resting: {next: Due}, Due: {next: Due}, Probing: {next: Probing},
		}},
		// The breaker was closed by an answer to another call while the probe is under way.
		"the probe fails late": {func(_ *Breaker, early, last Call, now time.Time) error {
			early.Answered()
			last.Failed(now, "no")
			return nil
		}, map[State]outcome{Probing: {next: Closed}}},
		"the probe gives up late": {func(_ *Breaker, early, last Call, _ time.Time) error {
			early.Answered()
			last.GaveUp()
			return nil
		}, map[State]outcome{Probing: {next: Closed}}},
	}
	for name, cell := range cells {
		for state, want := range cell.want {
			b, early, last, now := in(t, state)
			if got := b.State(now); got != state {
				t.Fatalf("the stage is %s, want %s", got, state)
			}
			err := cell.event(b, early, last, now)
			if got := b.State(now); got != want.next || (err != nil) != want.refused {
				t.Errorf("%s, %s: %s, refused %v; want %s, %v", state, name, got, err, want.next, want.refused)
			}
			if b.Open() != (want.next != Closed) {
				t.Errorf("%s, %s: open %v", state, name, b.Open())
			}
		}
	}
}

// TestRests: a rest doubles with each probe that fails, up to the longest, and an answer
// ends that.
func TestRests(t *testing.T) {
	t.Parallel()
	b, _, probe, now := in(t, Probing)
	for _, rest := range []time.Duration{15 * time.Second, 15 * time.Second} {
		if !probe.Failed(now, "still no") {
			t.Error("it has not opened again")
		}
		open := new(OpenError)
		if _, err := b.Begin(now.Add(rest - 1)); !errors.As(err, &open) || !open.Until.Equal(now.Add(rest)) ||
			!strings.HasSuffix(err.Error(), "the last: still no") {
			t.Errorf("%v, want a rest of %s", err, rest)
		}
		now = now.Add(rest)
		var err error
		if probe, err = b.Begin(now); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Begin(now); !errors.As(err, &open) || !open.Until.IsZero() || !strings.Contains(err.Error(), "one call tries") {
			t.Errorf("beside the probe: %v", err)
		}
	}
	if b.Last() != "still no" {
		t.Errorf("last %q", b.Last())
	}
	probe.Answered()
	for i := range 2 {
		call, err := b.Begin(now)
		if err != nil || i == 0 && b.Last() != "" {
			t.Fatalf("%v, last %q", err, b.Last())
		}
		call.GaveUp()
		call, _ = b.Begin(now)
		if opened := call.Failed(now, "no"); opened != (i == 1) {
			t.Errorf("failure %d: opened %v", i+1, opened)
		}
		if i == 0 {
			continue
		}
		if b.State(now.Add(10*time.Second)) != Due || b.State(now.Add(10*time.Second-1)) != Resting {
			t.Error("the first rest after an answer is not the shortest")
		}
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	if got, want := (Config{}).WithDefaults(), (Config{3, 5 * time.Second, time.Minute}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}
