package device

import (
	"maps"
	"slices"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
)

// Allocatable counts what the plugins give of each resource: healthy devices, used ones
// included.
func (s *Snapshot) Allocatable() workload.Quantities {
	out := workload.Quantities{}
	for r := range s.Resources() {
		out[workload.Resource(r.Name)] = int64(r.Allocatable())
	}
	return out
}

// UpdatePublished gives what a node's extended resources have to be for a check whether a
// pod fits, out of what is published of the node: where the pod holds devices, every
// resource of which pods hold some is raised to as many as they hold together. The names of
// those that were raised, or were not there, come sorted. A pod that holds none changes
// nothing. This is the kubelet's UpdatePluginResources.
func UpdatePublished(view *ledger.View, uid string, published workload.Quantities) (needed workload.Quantities, raised []string) {
	needed = maps.Clone(published)
	if needed == nil {
		needed = workload.Quantities{}
	}
	type deviceOf struct{ resource, id string }
	held := map[deviceOf]bool{}
	counts := map[workload.Resource]int64{}
	holds := false
	for pod := range view.DeviceHolders() {
		for i := range pod.Claims {
			c := &pod.Claims[i]
			if c.Devices == nil || c.Provider != Name {
				continue
			}
			holds = holds || pod.UID() == uid
			for _, d := range c.Devices.Devices {
				// Several containers have one device where an init container hands it on.
				if key := (deviceOf{c.Resource, d.ID}); !held[key] {
					held[key] = true
					counts[workload.Resource(c.Resource)]++
				}
			}
		}
	}
	if !holds {
		return needed, nil
	}
	for r, n := range counts {
		if have, there := needed[r]; !there || have < n {
			needed[r] = n
			raised = append(raised, string(r))
		}
	}
	slices.Sort(raised)
	return needed, raised
}
