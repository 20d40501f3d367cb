package deviceplugin_test

import (
	"context"
	"strings"
	"testing"

	"github.com/berthd/berth/hack/testing/script"
	"github.com/berthd/berth/server/internal/deviceplugin"
)

// TestEndOfAPluginBesideBerthds: a plugin ends just before berthd, which then writes nothing
// down any more. The resource is known all the same.
func TestEndOfAPluginBesideBerthds(t *testing.T) {
	t.Parallel()
	b := start(t, deviceplugin.Config{})
	p := b.registered(script.Config{Devices: devices(t, "g0")})
	b.mem.mu.Lock()
	b.mem.fail = context.Canceled
	b.mem.mu.Unlock()
	b.end(p)
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	if text := b.log.String(); strings.Contains(text, "will not be known") {
		t.Errorf("the log:\n%s", text)
	}
}
