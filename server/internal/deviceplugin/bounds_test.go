package deviceplugin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// A plugin with more devices than a resource may have is ended, and the log has the reason.
func TestTooManyDevices(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{MaxDevices: 10})
	list := func(n int) (out []script.Device) {
		for i := range n {
			out = append(out, script.Device{ID: fmt.Sprint("d", i), Nodes: []int64{0, 1}})
		}
		return out
	}
	p := b.registered(script.Config{Devices: list(10)})
	b.untilCounts(gpu, 10, 10)
	p.SetDevices(list(11)...)
	b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
	// What is far above is not even decoded.
	b.registered(script.Config{Devices: list(10)})
	b.untilCounts(gpu, 10, 10)
	if err := b.plugin(script.Config{Devices: list(10_000)}).Register(b.ctx); err != nil {
		t.Fatal(err)
	}
	b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
}

// Of 354 lists of 1,000 devices that come at once two count: the first, and the last one when
// the plugin ends its stream. Those in between come sooner than lists may count.
func TestListsInBetweenDoNotCount(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{UpdateEvery: time.Hour})
	list := func(n int) (out []script.Device) {
		for i := range 1000 {
			out = append(out, script.Device{ID: fmt.Sprint("d", i), Unhealthy: i < n})
		}
		return out
	}
	p := b.registered(script.Config{Devices: list(0)})
	b.untilCounts(gpu, 1000, 1000)
	before := b.inv.Snapshot().Revision()
	for n := range 354 {
		p.SetDevices(list(n + 1)...)
		if _, err := p.Await(b.ctx, script.ListAndWatch, n+2); err != nil { // it is sent
			t.Fatal(err)
		}
	}
	p.Stop()
	r := b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
	// The last list, and the end.
	if n := b.inv.Snapshot().Revision() - before; n > 2 {
		t.Errorf("%d lists counted; there are %d devices", n, len(r.Devices))
	}
}

// One resource more than plugins may have together is refused; those that are there may
// register again.
func TestTooManyResources(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{MaxResources: 2})
	one := b.registered(script.Config{Resource: "example.com/one", Devices: devices(t, "a")})
	b.registered(script.Config{Resource: "example.com/two", Devices: devices(t, "a")})
	three := b.plugin(script.Config{Resource: "example.com/three", Devices: devices(t, "a")})
	if err := three.Register(b.ctx); err == nil || !strings.Contains(err.Error(), "limits.pluginResources") {
		t.Errorf("a third one: %v", err)
	}
	if err := one.Register(b.ctx); err != nil {
		t.Errorf("the first one again: %v", err)
	}
}
