package podresources

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	v1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// external yields the devices that another program's device plugins have for a container, by resource and then by id. Each node of a
// device is an entry, so nodes that the machine does not have are left out.
func external(c *workload.Container, nodes numa.Mask) iter.Seq2[string, []ledger.Device] {
	byResource := map[string][]ledger.Device{}
	for _, d := range c.ExternalDevices {
		if d.Claim == nil && !d.Unlisted {
			at := d.Nodes.Intersect(nodes)
			byResource[d.Resource] = append(byResource[d.Resource], ledger.Device{ID: d.ID, Nodes: at, Topology: !at.IsEmpty()})
		}
	}
	return func(yield func(string, []ledger.Device) bool) {
		for _, resource := range slices.Sorted(maps.Keys(byResource)) {
			list := byResource[resource]
			slices.SortFunc(list, func(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) })
			if !yield(resource, list) {
				return
			}
		}
	}
}

// dynamic returns the devices that a container has by claims on dynamic resources, by claim, and then by driver, pool, device and
// share. Each device has its own CDI names only.
func dynamic(namespace string, c *workload.Container) (out []*v1.DynamicResource) {
	var claims []*workload.ExternalClaim
	for _, d := range c.ExternalDevices {
		if d.Claim != nil && !d.Unlisted {
			claims = append(claims, d.Claim)
		}
	}
	order := func(a, b *workload.ExternalClaim) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Driver, b.Driver), cmp.Compare(a.Pool, b.Pool),
			cmp.Compare(a.Device, b.Device), cmp.Compare(a.Share, b.Share))
	}
	slices.SortStableFunc(claims, order)
	// A device of berth-dra with several CDI names is several external devices.
	claims = slices.CompactFunc(claims, func(a, b *workload.ExternalClaim) bool { return order(a, b) == 0 })
	for _, claim := range claims {
		if n := len(out); n == 0 || out[n-1].ClaimName != claim.Name {
			out = append(out, &v1.DynamicResource{ClaimName: claim.Name, ClaimNamespace: namespace})
		}
		device := &v1.ClaimResource{DriverName: claim.Driver, PoolName: claim.Pool, DeviceName: claim.Device}
		if claim.Share != "" {
			device.ShareId = new(claim.Share)
		}
		for _, name := range claim.CDI {
			device.CdiDevices = append(device.CdiDevices, &v1.CDIDevice{Name: name})
		}
		last := out[len(out)-1]
		last.ClaimResources = append(last.ClaimResources, device)
	}
	return out
}

// unlisted adds the resources of a pod's external devices that cannot be listed.
func unlisted(names map[string]bool, p *ledger.Pod) {
	for i := range p.Pod.Containers {
		if p.Pod.Containers[i].Role == workload.Init {
			continue
		}
		for _, d := range p.Pod.Containers[i].ExternalDevices {
			if d.Unlisted {
				names[d.Resource] = true
			}
		}
	}
}

// notAllocatable adds the resources of which a pod has external devices. Only the other program knows all of their devices.
func notAllocatable(names map[string]bool, p *ledger.Pod) {
	for i := range p.Pod.Containers {
		for _, d := range p.Pod.Containers[i].ExternalDevices {
			if d.Claim == nil {
				names[d.Resource] = true
			}
		}
	}
}
