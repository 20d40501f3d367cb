package deviceplugin_test

import (
	"testing"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

func TestEndpoint(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	if got := b.Endpoint(gpu); got != "" {
		t.Errorf("nobody serves %s, yet its endpoint is %q", gpu, got)
	}
	p := b.registered(script.Config{Devices: devices(t, "a,b")})
	if got := b.Endpoint(gpu); got != p.Socket() {
		t.Errorf("endpoint %q, want %q", got, p.Socket())
	}
	p.Stop()
	b.until(gpu, "stopped", func(r *device.Resource) bool { return r.State == device.Stopped })
	if got := b.Endpoint(gpu); got != "" {
		t.Errorf("the plugin has gone, yet its endpoint is %q", got)
	}
}
