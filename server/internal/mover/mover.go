// Package mover carries out the moves of the ledger: it makes one step after the other, each as soon as
// the containers have followed the one before.
//
// It decides nothing, and stores nothing: the ledger has the moves, managers/admission makes the steps,
// and managers/transition plans them. So a start continues with the moves that it finds.
//
// Invariants: one step is made at a time. A step that is not possible yet is tried again, with growing
// pauses, and holds up no other pod. After the memory of a container has moved, no other memory moves until the
// limit of bytes per second allows it. Steps that move no memory are made meanwhile.
package mover

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/transition"
)

// The pauses after which a step is tried again.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Config of a Mover.
type Config struct {
	// View returns the current view.
	View func() *ledger.View
	// Advance makes the next step of a pod's move, as live.Engine does.
	Advance func(ctx context.Context, uid string, memoryStays bool) (live.Moved, error)
	// Observe is called after each step and each end of a move; nil for nothing.
	Observe func(live.Moved)
	Log     *slog.Logger
	Now     func() time.Time
}

// Mover carries out moves.
type Mover struct {
	Config
	wake chan struct{}
	// tries are the moving pods whose last step was not possible, by uid. quiet is when memory may move
	// again.
	tries map[string]*try
	quiet time.Time

	mu sync.Mutex
	// soon are the pods whose next step may be possible now. Guarded by mu.
	soon map[string]bool
}

// try is a step that was not possible.
type try struct {
	next  time.Time
	pause time.Duration
	// canceled is whether the move was canceled by then: the way back begins without the rest of a pause.
	canceled bool
	// text is the last warning, and said when it was logged.
	text string
	said time.Time
}

// New returns a mover. It starts nothing.
func New(cfg Config) *Mover {
	return &Mover{Config: cfg, wake: make(chan struct{}, 1), tries: map[string]*try{}, soon: map[string]bool{}}
}

// Wake requests a look at the ledger. It never blocks.
func (m *Mover) Wake() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Retry requests another try of a pod's next step without the rest of its pause. It never blocks.
func (m *Mover) Retry(uid string) {
	m.mu.Lock()
	m.soon[uid] = true
	m.mu.Unlock()
	m.Wake()
}

// endPauses ends the pauses of the pods that Retry has named.
func (m *Mover) endPauses() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.soon {
		if t := m.tries[uid]; t != nil {
			t.next = m.Now()
		}
	}
	clear(m.soon)
}

// Run carries out moves until ctx ends.
func (m *Mover) Run(ctx context.Context) error {
	for {
		again := time.NewTimer(time.Hour)
		if wait := m.Turn(ctx); wait > 0 {
			again.Reset(wait)
		}
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-again.C:
		}
		if again.Stop(); ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Turn makes all steps that are possible now. It returns the time until others may be; 0 if no pod moves.
func (m *Mover) Turn(ctx context.Context) (wait time.Duration) {
	m.endPauses()
	moving := map[string]bool{}
	for p := range m.View().Pods() {
		if p.Move == nil {
			continue
		}
		moving[p.UID()] = true
		for ctx.Err() == nil && m.step(ctx, p) {
		}
		if t := m.tries[p.UID()]; t != nil {
			if left := max(t.next.Sub(m.Now()), time.Millisecond); wait == 0 || left < wait {
				wait = left
			}
		}
	}
	for uid := range m.tries {
		if !moving[uid] {
			delete(m.tries, uid)
		}
	}
	return wait
}

// step makes a step, and returns whether the next one may be made at once.
func (m *Mover) step(ctx context.Context, p *ledger.Pod) bool {
	uid, now := p.UID(), m.Now()
	t := m.tries[uid]
	if t != nil && t.canceled == p.Move.Canceled && now.Before(t.next) {
		return false
	}
	done, err := m.Advance(ctx, uid, now.Before(m.quiet))
	if errors.Is(err, live.ErrMemoryStays) {
		// Not until the limit allows it: the move may be reversed before.
		m.tries[uid] = &try{next: now.Add(min(m.quiet.Sub(now), lastPause)), pause: firstPause, canceled: p.Move.Canceled}
		return false
	}
	if err != nil {
		m.again(ctx, p, err)
		return false
	}
	delete(m.tries, uid)
	if s := done.Step; s != nil {
		m.Log.InfoContext(ctx, "a pod moves", "pod", p.Pod.String(), "step", s.String())
		moves := s.Kind == transition.Migrate && !slices.Contains(p.Move.Stayed, s.Owner.Container)
		if limit := p.Move.BytesPerSecond; moves && limit > 0 {
			m.quiet = now.Add(time.Duration(float64(s.Bytes) / float64(limit) * float64(time.Second)))
		}
	}
	if m.Observe != nil {
		m.Observe(done)
	}
	return !done.Done
}

// again notes when a step is tried again, and reports its error once. The text of an error may have amounts that change
// with each try, and Retry may request many.
func (m *Mover) again(ctx context.Context, p *ledger.Pod, err error) {
	t := m.tries[p.UID()]
	if t == nil {
		t = &try{pause: firstPause / 2}
		m.tries[p.UID()] = t
	}
	t.pause, t.canceled = min(2*t.pause, lastPause), p.Move.Canceled
	now := m.Now()
	t.next = now.Add(t.pause)
	passes := errdefs.ClassOf(err) == errdefs.Unavailable || errdefs.ClassOf(err) == errdefs.Conflict
	if passes && t.pause < time.Second || t.text == err.Error() || now.Sub(t.said) < lastPause || ctx.Err() != nil {
		m.Log.DebugContext(ctx, "a pod waits for its next step", "pod", p.Pod.String(), "error", err)
		return
	}
	t.text, t.said = err.Error(), now
	m.Log.WarnContext(ctx, "a moving pod cannot make its next step; berthd tries again", "pod", p.Pod.String(), "error", err)
}
