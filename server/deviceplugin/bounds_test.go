package deviceplugin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/plugin/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/server/deviceplugin"
)

// A plugin with more devices than a resource may have is ended, and the log says why.
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
