package allocation

import (
	"maps"
	"slices"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/deviceplugin"
)

// compose collects everything that a runtime needs to start a container.
func (s *service) compose(view *ledger.View, pod *ledger.Pod, c *workload.Container) (*allocationv1.AllocateResponse, error) {
	path, err := s.Paths.ContainerPath(pod, c.Name)
	if err != nil {
		return nil, err
	}
	var held []ledger.Claim
	for _, claim := range pod.Claims {
		if claim.Owner.Container == c.Name {
			held = append(held, claim)
		}
	}
	answer, notes, err := deviceplugin.Merge(held)
	if err != nil {
		return nil, err
	}
	if s.Contradictions != nil {
		for _, n := range notes {
			s.Contradictions(ledger.Owner{Pod: pod.UID(), Container: c.Name}, n)
		}
	}
	out := &allocationv1.AllocateResponse{
		Linux:        linux(cgroup.AdmittedResources(view, pod, c, s.Cgroup())),
		CgroupParent: pod.CgroupParent, CgroupPath: path,
		Allocation: convert.Container(view, pod, c.Name), Notes: notes, Revision: view.Revision(),
	}
	for _, n := range s.Noter.Notes(view, pod, c.Name) {
		out.Notes = append(out.Notes, n.Text)
	}
	convert.ClaimHealth(out.GetAllocation().GetClaims(), s.Inventory.Inventory(), convert.Health)
	fromPlugins(out, answer)
	return out, nil
}

// fromPlugins adds the device plugins' settings for the container.
func fromPlugins(out *allocationv1.AllocateResponse, a deviceplugin.Answer) {
	for _, d := range a.Devices {
		out.Devices = append(out.Devices, &allocationv1.DeviceNode{
			ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions,
		})
	}
	for _, m := range a.Mounts {
		out.Mounts = append(out.Mounts, &allocationv1.Mount{
			ContainerPath: m.ContainerPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly,
		})
	}
	for _, name := range slices.Sorted(maps.Keys(a.Env)) {
		out.Envs = append(out.Envs, &allocationv1.EnvVar{Name: name, Value: a.Env[name]})
	}
	out.Annotations = a.Annotations
	out.CdiDevices = slices.Sorted(slices.Values(a.CDI))
}

// linux converts a container's values to a message. It omits the cgroup v2 weight, because
// runtimes compute it from the shares.
func linux(r cgroup.Resources) *allocationv1.LinuxResources {
	v := r.Values
	out := &allocationv1.LinuxResources{
		CpusetCpus: v.CPUs.String(), CpusetMems: v.Mems.Commas(),
		CpuShares:  int64(value(v.CPUShares)),
		CpuQuotaUs: value(v.CPUQuotaUS), CpuPeriodUs: int64(value(v.CPUPeriodUS)),
		MemoryLimitBytes: value(v.MemoryBytes), MemorySwapLimitBytes: value(v.MemorySwapBytes),
		Unified:     v.Unified,
		OomScoreAdj: int64(r.OOMScoreAdj),
	}
	for _, size := range slices.Sorted(maps.Keys(v.HugePages)) {
		out.HugepageLimits = append(out.HugepageLimits, &allocationv1.HugepageLimit{
			PageSize: cgroup.HugePageLabel(size), LimitBytes: uint64(v.HugePages[size]),
		})
	}
	return out
}

// value returns the pointer's value, or 0 for nil.
func value[T int64 | uint64](p *T) T {
	if p == nil {
		return 0
	}
	return *p
}
