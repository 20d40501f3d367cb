package allocation

import (
	"slices"

	"google.golang.org/protobuf/proto"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/api/convert/cgroups"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/deviceplugin"
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
		Resources:    linux(cgroup.AdmittedResources(view, pod, c, s.Cgroup())),
		CgroupParent: pod.CgroupParent, CgroupPath: path,
		Allocation: allocations.Container(view, pod, c.Name), Notes: notes, Revision: view.Revision(),
	}
	for _, n := range s.Noter.Notes(view, pod, c.Name) {
		out.Notes = append(out.Notes, n.Text)
	}
	allocations.ClaimHealth(out.GetAllocation().GetClaims(), s.Inventory.Inventory(), allocations.Health)
	out.Edits = edits(answer)
	return out, nil
}

// edits converts the device plugins' settings for the container.
func edits(a deviceplugin.Answer) *typesv1.ContainerEdits {
	out := &typesv1.ContainerEdits{Envs: a.Env, Annotations: a.Annotations}
	for _, d := range a.Devices {
		out.Devices = append(out.Devices, &typesv1.DeviceNode{
			ContainerPath: d.ContainerPath, HostPath: d.HostPath, Permissions: d.Permissions,
		})
	}
	for _, m := range a.Mounts {
		out.Mounts = append(out.Mounts, &typesv1.Mount{
			ContainerPath: m.ContainerPath, HostPath: m.HostPath, ReadOnly: m.ReadOnly,
		})
	}
	for _, name := range slices.Sorted(slices.Values(a.CDI)) {
		out.CdiDevices = append(out.CdiDevices, &typesv1.CDIDevice{Name: name})
	}
	return out
}

// linux converts a container's values to a message. It omits the cgroup v2 weight, because
// runtimes compute it from the shares.
func linux(r cgroup.Resources) *typesv1.LinuxResources {
	v := r.Values
	v.CPUWeight = nil
	out := cgroups.Values(v)
	out.OomScoreAdj = proto.Int32(int32(r.OOMScoreAdj))
	return out
}
