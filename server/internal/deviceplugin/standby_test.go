package deviceplugin_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// Of two plugins of a resource the older one serves again when the newer one has
// gone, whatever way, on the connection that it has (kubernetes#135437).
func TestOlderTakesOver(t *testing.T) {
	t.Parallel()
	for _, how := range []script.Manner{script.End, script.Refuse, script.Garbage, script.Die} {
		b := start(t, deviceplugin.Config{})
		old := b.registered(script.Config{Endpoint: "old.sock", Devices: devices(t, "a,b"), PreStart: true})
		newer := b.registered(script.Config{Endpoint: "new.sock", Devices: devices(t, "a,b,c")})
		old.SetDevices(devices(t, "a,b,d,e")...) // it is not read now
		newer.Behave(script.ListAndWatch, how)
		r := b.untilCounts(gpu, 4, 4)
		if r.State != device.Connected || !r.Options.PreStart || b.Endpoint(gpu) != old.Socket() {
			t.Errorf("%s: %s serves, %s, options %+v", how, b.Endpoint(gpu), r.State, r.Options)
		}
		if _, err := b.Allocate(b.ctx, gpu, []string{"e"}); err != nil || len(old.Calls(script.Allocate)) != 1 {
			t.Errorf("%s: the older plugin was not asked: %v", how, err)
		}
		if n := len(old.Calls(script.Options)); n != 1 {
			t.Errorf("%s: the older plugin was asked for its options %d times", how, n)
		}
	}
}

// TestOrderOfStandbys: the newest that lives comes first, one that has registered
// again counts as new, and the dead do not come back.
func TestOrderOfStandbys(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	first := b.registered(script.Config{Endpoint: "1.sock", Devices: devices(t, "a")})
	second := b.registered(script.Config{Endpoint: "2.sock", Devices: devices(t, "a,b")})
	third := b.registered(script.Config{Endpoint: "3.sock", Devices: devices(t, "a,b,c")})
	fourth := b.registered(script.Config{Endpoint: "4.sock", Devices: devices(t, "a,b,c,d")})
	nic := b.registered(script.Config{Resource: "example.com/nic", Devices: devices(t, "n")})
	b.register(first)
	ends := func(p *script.Plugin) { p.Die(); p.Wait() }
	ends(third)
	ends(first)
	b.untilCounts(gpu, 4, 4)
	ends(fourth)
	b.untilCounts(gpu, 2, 2)
	ends(second)
	b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
	b.untilCounts(nic.Resource, 1, 1)
	if r := b.untilCounts(gpu, 2, 0); b.Endpoint(gpu) != "" {
		t.Errorf("%s serves, %s", b.Endpoint(gpu), r.State)
	}
}

// A call to a plugin that is pushed out meanwhile does not wait for it: it is made
// again to the newer one.
func TestCallsOfAStandbyEnd(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	old := b.registered(script.Config{Endpoint: "old.sock", Devices: devices(t, "a")})
	old.Behave(script.Allocate, script.Hang)
	done := make(chan error, 1)
	go func() {
		_, err := b.Allocate(b.ctx, gpu, []string{"a"})
		done <- err
	}()
	if _, err := old.Await(b.ctx, script.Allocate, 1); err != nil {
		t.Fatal(err)
	}
	newer := b.registered(script.Config{Endpoint: "new.sock", Devices: devices(t, "a,b")})
	if err := <-done; err != nil || len(newer.Calls(script.Allocate)) != 1 {
		t.Errorf("%v, and the newer plugin was asked %d times", err, len(newer.Calls(script.Allocate)))
	}
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if strings.Contains(b.log.String(), "has gone") {
		t.Errorf("berth's own end, with a standby, counts as a plugin's:\n%s", b.log)
	}
}

// TestStandbysAreBounded: a plugin that registers under ever new names does not take ever
// more connections; the oldest end, and of those that are left the newest takes over.
func TestStandbysAreBounded(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	const kept = 8
	var plugins []*script.Plugin
	for i := range 3 * kept {
		plugins = append(plugins, b.registered(script.Config{Endpoint: fmt.Sprint(i, ".sock"), Devices: devices(t, "a")}))
	}
	other := b.registered(script.Config{Resource: "example.com/nic", Devices: devices(t, "n")})
	serving := len(plugins) - 1
	for range kept {
		plugins[serving].Die()
		plugins[serving].Wait()
		serving--
		b.until(gpu, "served by the one before", func(*device.Resource) bool { return b.Endpoint(gpu) == plugins[serving].Socket() })
	}
	b.untilCounts(gpu, 1, 1)
	plugins[serving].Die()
	plugins[serving].Wait()
	b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
	if _, err := b.Allocate(context.Background(), gpu, []string{"a"}); err == nil {
		t.Error("a connection beyond the bound was kept")
	}
	b.untilCounts(other.Resource, 1, 1)
}
