package allocations

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/managers/device"
)

var healths = map[device.Health]typesv1.Health{
	device.Healthy:   typesv1.Health_HEALTH_HEALTHY,
	device.Unhealthy: typesv1.Health_HEALTH_UNHEALTHY,
	device.Missing:   typesv1.Health_HEALTH_MISSING,
}

var pluginStates = map[device.State]typesv1.PluginState{
	device.Connected: typesv1.PluginState_PLUGIN_STATE_CONNECTED,
	device.Stopped:   typesv1.PluginState_PLUGIN_STATE_STOPPED,
	device.Expected:  typesv1.PluginState_PLUGIN_STATE_EXPECTED,
	device.Expired:   typesv1.PluginState_PLUGIN_STATE_EXPIRED,
}

// PluginState returns the message form of a plugin's state.
func PluginState(s device.State) typesv1.PluginState { return pluginStates[s] }

// Health completes the message form of a device of a resource by what its plugin
// reports now. A device that is missing has no health.
func Health(out *typesv1.Device, r *device.Resource) {
	if health := r.Health(out.GetId()); health != device.Missing {
		out.Health = healths[health]
	}
}

// HealthHistory does so, and adds what was before.
func HealthHistory(out *typesv1.Device, r *device.Resource) {
	Health(out, r)
	for _, c := range r.History(out.GetId()) {
		out.HealthHistory = append(out.HealthHistory, &typesv1.HealthChange{
			Time: timestamppb.New(c.At), Health: healths[c.Health],
		})
	}
}

// ClaimHealth completes every device in claims by Health or HealthHistory. Those
// of resources that no plugin serves or has served since berthd started stay as
// they are.
func ClaimHealth(claims []*typesv1.Claim, snap *device.Snapshot, complete func(*typesv1.Device, *device.Resource)) {
	for _, c := range claims {
		if c.GetDevice() == nil {
			continue
		}
		r, ok := snap.Resource(c.GetResource())
		if !ok {
			continue
		}
		for _, d := range c.GetDevice().GetDevices() {
			complete(d, r)
		}
	}
}

// PodHealth does so for every device that a pod holds.
func PodHealth(pod *typesv1.PodAllocation, snap *device.Snapshot, complete func(*typesv1.Device, *device.Resource)) {
	ClaimHealth(pod.GetClaims(), snap, complete)
	for _, c := range pod.GetContainers() {
		ClaimHealth(c.GetClaims(), snap, complete)
	}
}
