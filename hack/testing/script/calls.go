package script

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Call is one call to the plugin, or its own call of Register. It is recorded when the response
// is decided. A call that hangs is recorded when it arrives.
type Call struct {
	Time     time.Time `json:"time"`
	Method   Method    `json:"method"`
	Resource string    `json:"resource"`
	// IDs are the devices of the call, in the order in which they were sent; at ListAndWatch
	// those of the sent list.
	IDs []string `json:"ids,omitempty"`
	// MustInclude and Size are of Preferred.
	MustInclude []string `json:"must_include,omitempty"`
	Size        int      `json:"size,omitempty"`
	Manner      Manner   `json:"manner,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// note records a call and wakes waiting callers.
func (p *Plugin) note(c Call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.Time, c.Resource = time.Now(), p.Resource
	if c.Manner == "" {
		c.Manner = p.manners[c.Method]
	}
	p.calls = append(p.calls, c)
	p.wake()
	if p.Log != nil {
		_ = json.NewEncoder(p.Log).Encode(c)
	}
}

// Calls returns all calls so far, of the given methods if any are given.
func (p *Plugin) Calls(methods ...Method) []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.calls), func(c Call) bool {
		return len(methods) > 0 && !slices.Contains(methods, c.Method)
	})
}

// Await waits until there were n calls of a method, and returns the n-th.
func (p *Plugin) Await(ctx context.Context, m Method, n int) (Call, error) {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if calls := p.Calls(m); len(calls) >= n {
			return calls[n-1], nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Call{}, ctx.Err()
		}
	}
}

// AwaitStreams waits until n lists are being read. The plugin notices the end of a reader with a
// delay.
func (p *Plugin) AwaitStreams(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.streams == n })
}

// AwaitHanging waits until n calls hang.
func (p *Plugin) AwaitHanging(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.hanging == n })
}

// await waits until ok is true. ok is called with the lock held.
func (p *Plugin) await(ctx context.Context, ok func() bool) error {
	for {
		p.mu.Lock()
		changed, now := p.changed, ok()
		p.mu.Unlock()
		if now {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hangs counts the calls that hang.
func (p *Plugin) hangs(more int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hanging += more
	p.wake()
}

// wake wakes waiting callers after a change. The lock is held.
func (p *Plugin) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}
