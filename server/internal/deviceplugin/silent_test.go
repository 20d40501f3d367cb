package deviceplugin_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/internal/breaker"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// clock is a time that stands still until a test moves it.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(c.seconds.Load(), 0) }

// ending is a context whose deadline a test triggers.
type ending struct {
	context.Context
	done chan struct{}
}

func (e ending) Done() <-chan struct{} { return e.done }

func (e ending) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// waitInVain makes a call that the plugin does not answer; the caller waits for so long
// by the test's clock.
func (b *bench) waitInVain(p *script.Plugin, now *clock, long time.Duration) {
	b.t.Helper()
	whole, calls := b.ctx, len(p.Calls(script.Allocate))
	ctx := ending{whole, make(chan struct{})}
	failed := make(chan error, 1)
	b.ctx = ctx
	a := b.admission(p, 1)
	go func() { failed <- a.run() }()
	if _, err := p.Await(whole, script.Allocate, calls+1); err != nil {
		b.t.Fatal(err)
	}
	now.seconds.Add(int64(long.Seconds()))
	close(ctx.done)
	if err := <-failed; errdefs.ClassOf(err) != errdefs.Deadline || strings.Contains(err.Error(), "did not answer") {
		b.t.Fatalf("%v", err)
	}
	b.ctx = whole
}

// awaitHanging waits until so many calls hang in the plugin.
func (b *bench) awaitHanging(p *script.Plugin, n int) {
	b.t.Helper()
	if err := p.AwaitHanging(b.ctx, n); err != nil {
		b.t.Fatalf("%d calls should hang: %v", n, err)
	}
}

// eventually waits until an admission's outcome is as wanted, which the plugin does not
// hear of.
func (b *bench) eventually(ok func() bool) {
	b.t.Helper()
	for !ok() {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-b.ctx.Done():
			b.t.Fatalf("%v\n%s", b.ctx.Err(), b.log)
		}
	}
}

// TestSilentPlugin: a plugin that did not answer several times in a row is not called
// for a while. Pods that need it hear at once when it is called again; then one call
// finds out whether it answers.
func TestSilentPlugin(t *testing.T) {
	t.Parallel()
	var now clock
	now.seconds.Store(1000)
	b := startWith(t, deviceplugin.Config{
		Deadlines: deviceplugin.Deadlines{Allocate: hanging},
		Breaker:   breaker.Config{Failures: 2, Rest: time.Minute, Longest: time.Hour},
	}, device.NewInventory(nil, now.now()), now.now)
	p := b.registered(script.Config{Devices: devices(t, "a,b")})
	p.Behave(script.Allocate, script.Hang)
	allocate := func() error { return b.admission(p, 1).run() }
	silent := func() {
		t.Helper()
		if err := allocate(); err == nil || !strings.Contains(err.Error(), "did not answer Allocate within") {
			t.Fatal(err)
		}
	}
	silent()
	silent()
	suspended := func(until string, after time.Duration) {
		t.Helper()
		before := len(p.Calls(script.Allocate))
		err := allocate()
		var w hint.Waiter
		if !errors.As(err, &w) || w.Waits() != (hint.Wait{Condition: string(device.PluginSuspended), Resource: gpu}) {
			t.Fatalf("%v is nothing to wait for", err)
		}
		if fe := new(errdefs.Error); !errors.As(err, &fe) || fe.RetryAfter != after || !strings.Contains(err.Error(), until) ||
			!strings.Contains(err.Error(), p.Socket()) {
			t.Errorf("%v, again after %s; want %s with %q and the plugin's socket", err, fe.RetryAfter, after, until)
		}
		if n := len(p.Calls(script.Allocate)); n != before {
			t.Error("the plugin was called")
		}
	}
	suspended("until 1970-01-01T00:17:40Z", time.Minute)
	now.seconds.Add(59)
	suspended("until 1970-01-01T00:17:40Z", time.Second)

	// The probe fails, and the next rest is longer.
	now.seconds.Add(1)
	silent()
	suspended("until 1970-01-01T00:19:40Z", 2*time.Minute)

	// The probe continues without its caller.
	now.seconds.Add(120)
	calls := len(p.Calls(script.Allocate))
	whole := b.ctx
	ctx, cancel := context.WithCancel(whole)
	failed := make(chan error, 1)
	b.ctx = ctx
	a := b.admission(p, 1)
	go func() { failed <- a.run() }()
	if _, err := p.Await(whole, script.Allocate, calls+1); err != nil {
		t.Fatal(err)
	}
	suspended("while one call tries", 0)
	cancel()
	if err := <-failed; errdefs.ClassOf(err) != errdefs.Canceled {
		t.Errorf("%v", err)
	}
	b.ctx = whole
	b.eventually(func() bool {
		err := allocate()
		return err != nil && strings.Contains(err.Error(), "until 1970-01-01T00:23:40Z")
	})
	suspended("until 1970-01-01T00:23:40Z", 4*time.Minute)
	now.seconds.Add(240)
	p.Behave(script.Allocate, script.Refuse)
	if err := allocate(); err == nil || !strings.Contains(err.Error(), "told to refuse") {
		t.Errorf("%v: no is an answer, too", err)
	}
	p.Behave(script.Allocate, script.Well)
	if err := allocate(); err != nil {
		t.Error(err)
	}
	if log := b.log.String(); !strings.Contains(log, "does not answer") || !strings.Contains(log, "answers again") {
		t.Errorf("the log says nothing of it:\n%s", log)
	}
}

// TestSilentPluginComesAnew: another registration is another plugin, as far as berthd
// knows.
func TestSilentPluginComesAnew(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{Deadlines: deviceplugin.Deadlines{Allocate: hanging},
		Breaker: breaker.Config{Failures: 1, Rest: time.Hour}})
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	if err := b.admission(p, 1).run(); err == nil {
		t.Fatal("it does not hang")
	}
	p.Behave(script.Allocate, script.Well)
	if err := b.admission(p, 1).run(); err == nil || !strings.Contains(err.Error(), "suspended") {
		t.Fatal(err)
	}
	b.register(p)
	if err := b.admission(p, 1).run(); err != nil {
		t.Error(err)
	}
}

// TestImpatientCallers: callers that wait less long than a plugin may take do not suspend
// it, however many they are.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	var now clock
	b := startWith(t, deviceplugin.Config{Breaker: breaker.Config{Failures: 2}}, device.NewInventory(nil, now.now()), now.now)
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	for range 3 {
		b.waitInVain(p, &now, timeout-time.Second)
	}
	b.awaitHanging(p, 2) // as many as would open the breaker continue
	p.Behave(script.Allocate, script.Well)
	if err := b.admission(p, 1).run(); err != nil {
		t.Error(err)
	}
}

// TestSilenceIsFoundBeforeTheDeadline: a plugin that does not answer in its own time is
// found out by calls that continue without their callers.
func TestSilenceIsFoundBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	var now clock
	b := startWith(t, deviceplugin.Config{
		Deadlines: deviceplugin.Deadlines{Allocate: hanging}, Breaker: breaker.Config{Failures: 2},
	}, device.NewInventory(nil, now.now()), now.now)
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	b.waitInVain(p, &now, 0)
	b.waitInVain(p, &now, 0)
	b.eventually(func() bool { return strings.Contains(b.log.String(), "does not answer") })
	if err := b.admission(p, 1).run(); err == nil || !strings.Contains(err.Error(), "suspended") {
		t.Errorf("%v", err)
	}
}

// TestNoStartWithoutItsCaller: a call before a container's start ends with its caller,
// since the plugin may reset the device, and does not count against the plugin.
func TestNoStartWithoutItsCaller(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{Breaker: breaker.Config{Failures: 1}})
	p := b.registered(script.Config{Devices: devices(t, "a"), PreStart: true})
	a := b.admission(p, 1)
	if err := a.run(); err != nil {
		t.Fatal(err)
	}
	p.Behave(script.PreStart, script.Hang)
	ctx := ending{b.ctx, make(chan struct{})}
	failed := make(chan error, 1)
	go func() { failed <- b.PreStart(ctx, a.draft.View(), a.req.Owner()) }()
	b.awaitHanging(p, 1)
	close(ctx.done)
	if err := <-failed; errdefs.ClassOf(err) != errdefs.Deadline {
		t.Errorf("%v", err)
	}
	b.awaitHanging(p, 0)
	p.Behave(script.PreStart, script.Well)
	if err := b.PreStart(b.ctx, a.draft.View(), a.req.Owner()); err != nil {
		t.Error(err)
	}
}
