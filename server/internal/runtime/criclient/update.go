package criclient

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/managers/cgroup"
)

// Update sets a container's values: immediately if it runs, at its start if it is created. Absent
// values do not change. An exited or unknown container is no error, because it has no processes
// to limit.
func (c *Client) Update(ctx context.Context, id string, v cgroup.Values) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := c.cri.UpdateContainerResources(ctx, &criv1.UpdateContainerResourcesRequest{ContainerId: id, Linux: resources(v)})
	if err == nil || status.Code(err) == codes.NotFound {
		return nil
	}
	// Runtimes report a container that has just exited in different ways.
	now, again := c.cri.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	if status.Code(again) == codes.NotFound || now.GetStatus().GetState() == criv1.ContainerState_CONTAINER_EXITED {
		return nil
	}
	return c.failed("update container "+id, err)
}

// resources gives values in the form of CRI, where 0 and "" mean no change. The
// weight of v2 is left out: runtimes compute it from the shares.
func resources(v cgroup.Values) *criv1.LinuxContainerResources {
	out := &criv1.LinuxContainerResources{
		CpusetCpus: v.CPUs.String(), CpusetMems: v.Mems.Commas(),
		CpuShares: int64(value(v.CPUShares)),
		CpuQuota:  value(v.CPUQuotaUS), CpuPeriod: int64(value(v.CPUPeriodUS)),
		MemoryLimitInBytes: value(v.MemoryBytes), MemorySwapLimitInBytes: value(v.MemorySwapBytes),
		Unified: v.Unified,
	}
	for _, size := range slices.Sorted(maps.Keys(v.HugePages)) {
		out.HugepageLimits = append(out.HugepageLimits, &criv1.HugepageLimit{
			PageSize: cgroup.HugePageLabel(size), Limit: uint64(v.HugePages[size]),
		})
	}
	return out
}

// value returns 0 for nil.
func value[T int64 | uint64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}
