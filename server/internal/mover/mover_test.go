package mover

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/transition"
)

// scene is a mover over a ledger with moving pods. Each has the answers of its next steps.
type scene struct {
	*Mover
	ledger  *ledger.Ledger
	answers map[string][]error
	steps   []string
	now     time.Time
	// still are the pods of which no memory moves.
	still map[string]bool
	log   bytes.Buffer
}

func newScene(t *testing.T, limit uint64, answers map[string][]error) *scene {
	t.Helper()
	s := &scene{ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")}), answers: answers, now: time.Unix(1000, 0)}
	s.update(t, func(d *ledger.Draft) {
		for uid := range answers {
			p := ledgertest.Pod(uid, "c")
			p.Move = &ledger.Move{BytesPerSecond: limit}
			d.PutPod(p)
		}
		d.PutPod(ledgertest.Pod("quiet", "c"))
	})
	s.Mover = New(Config{
		View: s.ledger.View, Now: func() time.Time { return s.now },
		Log: slog.New(slog.NewTextHandler(&s.log, nil)),
		Advance: func(_ context.Context, uid string, memoryStays bool) (live.Moved, error) {
			if memoryStays && !s.still[uid] {
				return live.Moved{}, fmt.Errorf("move pod %s: %w", uid, live.ErrMemoryStays)
			}
			next := s.answers[uid][0]
			if s.answers[uid] = s.answers[uid][1:]; next != nil {
				return live.Moved{}, next
			}
			s.steps = append(s.steps, uid)
			kind := transition.Migrate
			if s.still[uid] {
				kind = transition.Narrow
			}
			m := live.Moved{Step: &transition.Step{Kind: kind, Bytes: 100, Owner: ledger.Owner{Pod: uid, Container: "c"}}}
			if m.Done = len(s.answers[uid]) == 0; m.Done {
				s.update(t, func(d *ledger.Draft) { d.PutPod(ledgertest.Pod(uid, "c")) })
			}
			return m, nil
		},
	})
	return s
}

func (s *scene) update(t *testing.T, change func(*ledger.Draft)) {
	t.Helper()
	if _, err := s.ledger.Update(t.Context(), func(d *ledger.Draft) error { change(d); return nil }); err != nil {
		t.Fatal(err)
	}
}

func (s *scene) made() string { return strings.Join(s.steps, " ") }

func TestTurns(t *testing.T) {
	t.Parallel()
	not := errdefs.Unavailablef("container a/c is on CPUs 1")
	s := newScene(t, 0, map[string][]error{"a": {nil, not, not, nil}, "b": {nil, nil}})
	wait := s.Turn(t.Context())
	if wait != firstPause || s.made() != "a b b" {
		t.Errorf("a step is not possible: %s, again in %s", s.made(), wait)
	}
	if s.Turn(t.Context()) != firstPause || s.made() != "a b b" {
		t.Errorf("too early: %s", s.made())
	}
	s.now = s.now.Add(wait)
	if wait = s.Turn(t.Context()); wait != 2*firstPause {
		t.Errorf("again in %s", wait)
	}
	s.now = s.now.Add(wait)
	if wait = s.Turn(t.Context()); wait != 0 || s.made() != "a b b a" || len(s.tries) != 0 {
		t.Errorf("in the end: %s, again in %s", s.made(), wait)
	}
}

// Retries whose errors differ, as with the memory that is left, are in the log now and then only.
func TestLogOfRetries(t *testing.T) {
	t.Parallel()
	var errs []error
	for i := range 200 {
		errs = append(errs, errdefs.Unavailablef("%d bytes are on node 0", 200-i))
	}
	s := newScene(t, 0, map[string][]error{"a": errs, "b": {nil}})
	const every = lastPause / 50
	for range errs {
		s.Retry("a")
		s.Turn(t.Context())
		s.now = s.now.Add(every)
	}
	if n := strings.Count(s.log.String(), "cannot make its next step"); n != 4 {
		t.Errorf("%d warnings in %s", n, time.Duration(len(errs))*every)
	}
}

// A retry ends the pause of its pod, and not the time that the limit of bytes requires.
func TestRetry(t *testing.T) {
	t.Parallel()
	not := errdefs.Unavailablef("memory of container a/c is on node 0")
	s := newScene(t, 50, map[string][]error{"a": {not, nil, nil}, "b": {not, nil}})
	s.Turn(t.Context())
	s.Retry("a")
	s.Retry("none")
	if wait := s.Turn(t.Context()); wait != firstPause || s.made() != "a" {
		t.Errorf("%s, again in %s", s.made(), wait)
	}
	s.Retry("a")
	if s.Turn(t.Context()); s.made() != "a" || len(s.soon) != 0 {
		t.Errorf("within the limit of bytes: %s; left %v", s.made(), s.soon)
	}
}

// The rate is an average: the next memory moves when the last one has had its time.
func TestLimitOfBytes(t *testing.T) {
	t.Parallel()
	s := newScene(t, 50, map[string][]error{"a": {nil}, "b": {nil}})
	if wait := s.Turn(t.Context()); wait != 2*time.Second || s.made() != "a" {
		t.Errorf("%s, again in %s", s.made(), wait)
	}
	s.now = s.now.Add(2 * time.Second)
	if wait := s.Turn(t.Context()); wait != 0 || s.made() != "a b" {
		t.Errorf("%s, again in %s", s.made(), wait)
	}
}

// While memory has to wait, steps that move none are made, and the next ones of others are looked for: a move may have been
// reversed.
func TestOtherStepsGoOn(t *testing.T) {
	t.Parallel()
	s := newScene(t, 1, map[string][]error{"a": {nil}, "b": {nil}, "c": {nil, nil}})
	s.still = map[string]bool{"c": true}
	if wait := s.Turn(t.Context()); wait != lastPause || s.made() != "a c c" {
		t.Errorf("%s, again in %s", s.made(), wait)
	}
	s.now = s.now.Add(lastPause)
	if wait := s.Turn(t.Context()); wait != lastPause || s.made() != "a c c" || s.log.Len() == 0 ||
		strings.Contains(s.log.String(), "cannot make") {
		t.Errorf("%s, again in %s:\n%s", s.made(), wait, &s.log)
	}
	s.now = s.now.Add(90 * time.Second)
	if s.Turn(t.Context()); s.made() != "a c c b" {
		t.Errorf("%s", s.made())
	}
}

// An error that lasts is logged once, and a pod that has left is forgotten.
func TestLastingErrors(t *testing.T) {
	t.Parallel()
	refused := errdefs.Refuse(errdefs.ResizeDeferred, "a/c waits for CPUs 3")
	s := newScene(t, 0, map[string][]error{"a": {refused, refused, refused}})
	for range 3 {
		s.now = s.now.Add(s.Turn(t.Context()))
	}
	if n := strings.Count(s.log.String(), "waits for CPUs 3"); n != 1 {
		t.Errorf("logged %d times:\n%s", n, &s.log)
	}
	s.update(t, func(d *ledger.Draft) { d.RemovePod("a") })
	if wait := s.Turn(t.Context()); wait != 0 || len(s.tries) != 0 {
		t.Errorf("after the pod has left: again in %s, %d tries", wait, len(s.tries))
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	s := newScene(t, 0, map[string][]error{"a": {nil}})
	ctx, cancel := context.WithCancel(t.Context())
	s.Observe = func(m live.Moved) {
		if m.Done {
			cancel()
		}
	}
	s.Wake()
	s.Wake()
	if err := s.Run(ctx); err == nil || s.made() != "a" {
		t.Errorf("%v, %s", err, s.made())
	}
}

// The way back of memory that had not begun to move does not count for the limit.
func TestMemoryThatStayed(t *testing.T) {
	t.Parallel()
	s := newScene(t, 50, map[string][]error{"a": {nil}, "b": {nil}})
	s.update(t, func(d *ledger.Draft) {
		p := ledgertest.Pod("a", "c")
		p.Move = &ledger.Move{BytesPerSecond: 50, Stayed: []string{"c"}}
		d.PutPod(p)
	})
	if wait := s.Turn(t.Context()); wait != 0 || s.made() != "a b" {
		t.Errorf("%s, again in %s", s.made(), wait)
	}
}

// A move that was canceled makes its next step without the rest of the pause, once.
func TestCanceledInAPause(t *testing.T) {
	t.Parallel()
	not := errdefs.Unavailablef("container a/c is on CPUs 1")
	s := newScene(t, 0, map[string][]error{"a": {not, not, nil}})
	s.Turn(t.Context())
	s.update(t, func(d *ledger.Draft) {
		p := ledgertest.Pod("a", "c")
		p.Move = &ledger.Move{Canceled: true}
		d.PutPod(p)
	})
	if wait := s.Turn(t.Context()); wait != 2*firstPause || len(s.answers["a"]) != 1 {
		t.Errorf("again in %s, %d steps are left", wait, len(s.answers["a"]))
	}
	if s.Turn(t.Context()); len(s.answers["a"]) != 1 {
		t.Error("a second step without a pause")
	}
}
