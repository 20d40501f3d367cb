package deviceplugin_test

import (
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// untilForgotten waits until a resource is not known any more.
func (b *bench) untilForgotten(resource string) {
	b.t.Helper()
	for {
		snap := b.inv.Snapshot()
		if _, known := snap.Resource(resource); !known {
			return
		}
		select {
		case <-snap.Superseded():
		case <-b.ctx.Done():
			b.t.Fatalf("%s is still known\n%s", resource, b.log)
		}
	}
}

// end stops a plugin and waits until that is noticed.
func (b *bench) end(p *script.Plugin) {
	b.t.Helper()
	p.Stop()
	p.Wait()
	b.until(p.Resource, "without its plugin", func(r *device.Resource) bool { return r.State != device.Connected })
}

// TestForgottenByItself: a resource whose plugin does not come back is forgotten after
// its time, once no pod holds any of it.
func TestForgottenByItself(t *testing.T) {
	t.Parallel()
	t.Run("as if it had never been there", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{ForgetAfter: 50 * time.Millisecond})
		p := b.registered(script.Config{Devices: devices(t, "g0 g1")})
		if b.mem.times(gpu) == 0 {
			t.Error("it is not remembered")
		}
		p.Stop()
		p.Wait()
		b.untilForgotten(gpu)
		if b.mem.times(gpu) != 0 {
			t.Error("it is remembered for the next start")
		}
		b.registered(script.Config{Devices: devices(t, "g0"), Endpoint: "other.sock"})
	})
	t.Run("and refused under its name", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{ForgetAfter: 50 * time.Millisecond, KeepName: true})
		p := b.registered(script.Config{Devices: devices(t, "g0 g1")})
		p.Stop()
		p.Wait()
		b.until(gpu, "retired", func(r *device.Resource) bool { return r.State == device.Expired && r.Away.IsZero() && !r.Awaited() })
		if b.mem.times(gpu) != 0 {
			t.Error("it is remembered for the next start")
		}
	})
	t.Run("not while it is held", func(t *testing.T) {
		t.Parallel()
		b := start(t, deviceplugin.Config{ForgetAfter: time.Nanosecond})
		b.mem.held = true
		b.end(b.registered(script.Config{Devices: devices(t, "g0")}))
		if err := b.Forget(b.ctx, gpu); errdefs.ClassOf(err) != errdefs.Precondition {
			t.Errorf("held: %v", err)
		}
		b.mem.release()
		// Whatever changes has the server look again.
		b.registered(script.Config{Resource: "example.com/nic", Devices: devices(t, "n0"), Endpoint: "nic.sock"})
		b.untilForgotten(gpu)
	})
}

// TestForget: the call forgets a resource at once, but not one that has a plugin.
func TestForget(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	if err := b.Forget(b.ctx, gpu); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("unknown: %v", err)
	}
	p := b.registered(script.Config{Devices: devices(t, "g0")})
	if err := b.Forget(b.ctx, gpu); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("connected: %v", err)
	}
	b.untilCounts(gpu, 1, 1)
	b.end(p)
	if b.mem.asked != 1 {
		t.Errorf("without a time it was to be forgotten %d times", b.mem.asked-1)
	}
	if err := b.Forget(b.ctx, gpu); err != nil {
		t.Error(err)
	}
	b.untilForgotten(gpu)
}
