package deviceplugin_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthd/berth/hack/plugin/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/server/breaker"
	"github.com/berthd/berth/server/deviceplugin"
)

// clock is a time that stands still until a test moves it.
type clock struct{ seconds atomic.Int64 }

func (c *clock) now() time.Time { return time.Unix(c.seconds.Load(), 0) }

// ending is a context whose deadline passes when a test says so.
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
	if err := <-failed; errdefs.ClassOf(err) != errdefs.Deadline {
		b.t.Fatalf("%v", err)
	}
	b.ctx = whole
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
	b.waitInVain(p, &now, hanging)
	if err := allocate(); err == nil || !strings.Contains(err.Error(), "did not answer Allocate within") {
		t.Fatal(err)
	}
	suspended := func(until string, after time.Duration) {
		t.Helper()
		before := len(p.Calls(script.Allocate))
		err := allocate()
		var w hint.Waiter
		if !errors.As(err, &w) || w.Waits() != (hint.Wait{Condition: string(device.PluginSuspended), Resource: gpu}) {
			t.Fatalf("%v is nothing to wait for", err)
		}
		if fe := new(errdefs.Error); !errors.As(err, &fe) || fe.RetryAfter != after || !strings.Contains(err.Error(), until) || !strings.Contains(err.Error(), p.Socket()) {
			t.Errorf("%v, again after %s; want %s with %q and the plugin's socket", err, fe.RetryAfter, after, until)
		}
		if n := len(p.Calls(script.Allocate)); n != before {
			t.Error("the plugin was called")
		}
	}
	suspended("until 1970-01-01T00:17:42Z", time.Minute)
	now.seconds.Add(59)
	suspended("until 1970-01-01T00:17:42Z", time.Second)

	// The probe fails, and the next rest is longer.
	now.seconds.Add(1)
	b.waitInVain(p, &now, hanging)
	suspended("until 1970-01-01T00:19:44Z", 2*time.Minute)

	// A caller that gives up says nothing about the plugin: the next one probes.
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
	b := start(t, deviceplugin.Config{Deadlines: deviceplugin.Deadlines{Allocate: hanging}, Breaker: breaker.Config{Failures: 1, Rest: time.Hour}})
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

// TestImpatientCallers: a plugin is found to be silent by callers that wait at least
// half as long as berthd would.
func TestImpatientCallers(t *testing.T) {
	t.Parallel()
	var now clock
	b := startWith(t, deviceplugin.Config{Breaker: breaker.Config{Failures: 1}}, device.NewInventory(nil, now.now()), now.now)
	p := b.registered(script.Config{Devices: devices(t, "a")})
	p.Behave(script.Allocate, script.Hang)
	b.waitInVain(p, &now, timeout/2-time.Second)
	b.waitInVain(p, &now, timeout/2)
	if err := b.admission(p, 1).run(); err == nil || !strings.Contains(err.Error(), "suspended") {
		t.Errorf("%v", err)
	}
}
