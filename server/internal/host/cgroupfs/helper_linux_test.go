package cgroupfs

import (
	"context"
	"sync/atomic"
)

// counter gives each test a place of its own.
type counter struct{ last atomic.Int64 }

func (c *counter) next() int64 { return c.last.Add(1) }

var cgroupNumber counter

// cleanupContext is for what runs after a test's own context has ended; Remove
// brings its own deadline.
func cleanupContext() context.Context { return context.Background() }
