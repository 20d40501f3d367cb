package lifecycle

import "time"

// Backoff are pauses that grow.
type Backoff struct {
	// First is the first pause, Max the longest; each is twice the one before.
	First, Max time.Duration
	// Forget is the length of a run after which the pauses start again with none.
	Forget time.Duration
}

// Crash has the kubelet's pauses between attempts of a container: none after the first, then 10
// s, doubling up to 5 minutes, and none again after a run of 10 minutes.
var Crash = Backoff{First: 10 * time.Second, Max: 5 * time.Minute, Forget: 10 * time.Minute}

// Retry is the pause before a failed step is tried again.
var Retry = Backoff{First: 200 * time.Millisecond, Max: 20 * time.Second}

// After gives the pause that follows one.
func (b Backoff) After(pause time.Duration) time.Duration {
	if pause <= 0 {
		return b.First
	}
	return min(2*pause, b.Max)
}

// next gives when a container may be tried again, and the pause after that
// attempt.
func (b Backoff) next(s Seen) (due time.Time, pause time.Duration) {
	pause = s.Pause
	if !s.Started.IsZero() && b.Forget > 0 && s.Finished.Sub(s.Started) >= b.Forget {
		pause = 0
	}
	return s.Finished.Add(pause), b.After(pause)
}
