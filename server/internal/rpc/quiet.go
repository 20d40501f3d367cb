package rpc

import (
	"context"
	"sync/atomic"
	"time"
)

// A costly call of another user uses one processor and creates garbage. The garbage collection
// uses all processors for some milliseconds. With many such calls, most of root's calls would be
// delayed. A costly call therefore begins while root makes no calls. It waits for that only for a
// limited time. If root always makes calls, each slot still has 20 calls a second.
const (
	// quietFor is how long no call of root's has run when the agent is quiet.
	quietFor = 10 * time.Millisecond
	// quietWait is the maximum wait of a costly call.
	quietWait = 50 * time.Millisecond
)

// quiet follows the calls of root and of berthd's own user. It is safe for concurrent use.
type quiet struct {
	running atomic.Int64
	last    atomic.Int64 // when one ended, as the time since started; 0 before the first
}

// started is the moment from which ends of calls are counted.
var started = time.Now()

// begin records that a call runs until end.
func (q *quiet) begin() { q.running.Add(1) }

func (q *quiet) end() {
	q.last.Store(int64(time.Since(started)))
	q.running.Add(-1)
}

// left is how long it takes until it is quiet, if no further call comes.
func (q *quiet) left() time.Duration {
	last := q.last.Load()
	switch {
	case q.running.Load() > 0:
		return quietFor
	case last == 0:
		return 0
	}
	return quietFor - (time.Since(started) - time.Duration(last))
}

// await waits until it is quiet, for a limited time.
func (q *quiet) await(ctx context.Context) error {
	end := time.Now().Add(quietWait)
	for {
		left := min(q.left(), time.Until(end))
		if left <= 0 {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}
