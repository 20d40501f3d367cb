package get

import (
	"testing"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// TestResourceText: nothing is said about the plugins of a kubelet, which are not seen.
func TestResourceText(t *testing.T) {
	t.Parallel()
	r := &allocationv1.DeviceResource{
		Name: "example.com/gpu", PluginState: typesv1.PluginState_PLUGIN_STATE_CONNECTED, Capacity: 2, Allocatable: 1,
		UnhealthyDevices: []string{"gpu1"},
	}
	for known, want := range map[bool]string{
		true:  "example.com/gpu: plugin connected, 1 of 2 healthy, not gpu1",
		false: "example.com/gpu: 1 of 2 healthy, not gpu1",
	} {
		if got := resourceText(r, known); got != want {
			t.Errorf("known %t: %q, want %q", known, got, want)
		}
	}
}
