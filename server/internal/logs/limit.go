package logs

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

const (
	// linesEvery and linesBurst are the rate of lines with the same message.
	linesEvery = time.Second
	linesBurst = 20
	// LeftOut is the key of the number of lines with the same message that were left out before.
	LeftOut = "left_out"
)

// Limit returns a log for what others cause as often as they like. It leaves out lines of a message that come too
// often, and the next line has their number. Messages do not take each other's room. There must be a fixed
// number of them: what differs stands in attributes.
func Limit(log *slog.Logger) *slog.Logger {
	return slog.New(&limited{Handler: log.Handler(), messages: &messages{of: map[string]*message{}}})
}

// limited is the handler of Limit.
type limited struct {
	slog.Handler
	messages *messages // shared with the handlers that have more attributes
}

type messages struct {
	mu sync.Mutex
	of map[string]*message // guarded by mu
}

type message struct {
	room    *rate.Limiter
	leftOut int
}

// next returns whether a line may be logged, and how many were left out before it.
func (m *messages) next(text string) (leftOut int, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := m.of[text]
	if have == nil {
		have = &message{room: rate.NewLimiter(rate.Every(linesEvery), linesBurst)}
		m.of[text] = have
	}
	if !have.room.Allow() {
		have.leftOut++
		return 0, false
	}
	leftOut, have.leftOut = have.leftOut, 0
	return leftOut, true
}

// Handle implements slog.Handler.
func (l *limited) Handle(ctx context.Context, r slog.Record) error {
	leftOut, ok := l.messages.next(r.Message)
	if !ok {
		return nil
	}
	if leftOut > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int(LeftOut, leftOut))
	}
	return l.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (l *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{Handler: l.Handler.WithAttrs(attrs), messages: l.messages}
}

// WithGroup implements slog.Handler.
func (l *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: l.Handler.WithGroup(name), messages: l.messages}
}
