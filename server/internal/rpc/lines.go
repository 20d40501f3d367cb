package rpc

import (
	"sync/atomic"

	"golang.org/x/time/rate"
)

// lines limits the lines of the log that callers other than root cause.
type lines struct {
	limit   *rate.Limiter
	omitted atomic.Int64 // since the last line
}

func newLines() *lines {
	return &lines{limit: rate.NewLimiter(rate.Every(refusalLogEvery), refusalLogBurst)}
}

// next reports whether another line may be logged, and how many were omitted before it.
func (l *lines) next() (omitted int64, ok bool) {
	if !l.limit.Allow() {
		l.omitted.Add(1)
		return 0, false
	}
	return l.omitted.Swap(0), true
}
