package driver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/managers/errdefs"
	nodemanager "github.com/berthd/berth/managers/node"
	"github.com/berthd/berth/managers/workload"
)

// compare returns what is counted twice, or could be, as sentences: the kubelet lets the scheduler give it to pods, and
// claims can have it.
func (d *Driver) compare(ctx context.Context, allocatable *nodev1.GetAllocatableResponse, devices []resourceapi.Device) ([]string, error) {
	status, err := d.NodeStatus(ctx)
	if err != nil {
		return nil, fmt.Errorf("read node %s, whose allocatable amounts are compared with what claims can have: %w", d.NodeName, err)
	}
	if status.Capacity.Cpu().IsZero() {
		return nil, errdefs.Unavailablef("node %s has no capacity yet: the kubelet has not reported it", d.NodeName)
	}
	if allocatable.GetResourceClaimsFromAllocatable() {
		return d.compareOnePool(ctx, status, allocatable, devices)
	}
	return d.compareDivision(status, allocatable.GetResourceClaims())
}

// compareDivision compares what only claims can have.
func (d *Driver) compareDivision(status corev1.NodeStatus, claims []*nodev1.ClaimNode) ([]string, error) {
	wanted := workload.Quantities{}
	for _, n := range claims {
		cpus, _, err := amounts(n)
		if err != nil {
			return nil, err
		}
		wanted[workload.CPU] += int64(cpus.Len()) * 1000
		for name, text := range n.GetResources() {
			q, err := resource.ParseQuantity(text)
			if err != nil {
				return nil, errdefs.Internalf("%s of NUMA node %d: %w", name, n.GetNumaNode(), err)
			}
			wanted[workload.Resource(name)] += q.Value()
		}
	}
	return nodemanager.CountedTwice(quantities(status.Capacity), quantities(status.Allocatable), wanted), nil
}

// quantities are CPUs in thousandths, and other resources in their unit.
func quantities(list corev1.ResourceList) workload.Quantities {
	out := workload.Quantities{}
	for name, q := range list {
		out[workload.Resource(name)] = amountOf(string(name), q)
	}
	return out
}

// amountOf is CPUs in thousandths, and other resources in their unit.
func amountOf(name string, q resource.Quantity) int64 {
	if name == string(workload.CPU) {
		return q.MilliValue()
	}
	return q.Value()
}
