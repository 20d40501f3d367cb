package script

import (
	"context"
	"encoding/json"
	"slices"
	"time"
)

// Call is one thing that the plugin was asked, or at Register asked itself. It is
// noted when the answer is decided; of a call that hangs, when it came.
type Call struct {
	Time     time.Time `json:"time"`
	Method   Method    `json:"method"`
	Resource string    `json:"resource"`
	// IDs are the devices that it was about, in the order they were sent: at
	// ListAndWatch those of the list that went out.
	IDs []string `json:"ids,omitempty"`
	// MustInclude and Size are of Preferred.
	MustInclude []string `json:"must_include,omitempty"`
	Size        int      `json:"size,omitempty"`
	Manner      Manner   `json:"manner,omitempty"`
	Error       string   `json:"error,omitempty"`
}

// note keeps a call and wakes who waits for it.
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

// AwaitStreams waits until n lists are being read. A plugin learns a moment later that
// a reader has gone.
func (p *Plugin) AwaitStreams(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.streams == n })
}

// AwaitHanging waits until n calls hang.
func (p *Plugin) AwaitHanging(ctx context.Context, n int) error {
	return p.await(ctx, func() bool { return p.hanging == n })
}

// await waits until what is true that is computed with the lock held.
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

// wake tells those who wait that something changed. The lock is held.
func (p *Plugin) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}
