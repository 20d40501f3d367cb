package app

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	qosv1 "github.com/berthd/berth/api/berth/qos/v1"
	"github.com/berthd/berth/api/config"
	"github.com/berthd/berth/api/convert"
	cgroups "github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/host/sysctl"
	"github.com/berthd/berth/server/reconcile"
	"github.com/berthd/berth/server/rpc/cgroup"
	"github.com/berthd/berth/server/rpc/node"
	"github.com/berthd/berth/server/rpc/qos"
)

// registerNode registers the services about the node as a whole and its cgroups.
func (a *App) registerNode(s grpc.ServiceRegistrar) error {
	loop, layout := a.reconcile, a.reconcile.Layout
	facts := loop.QoS.Cgroup.Facts
	pods := &reconcile.Pods{Loop: loop, Alone: a.Engine.Alone}
	cgroupv1.RegisterCgroupServiceServer(s, cgroup.New(loop, &reconcile.Hand{Loop: loop, Alone: a.Engine.Alone}, layout, facts))
	cgroupv1.RegisterPodCgroupServiceServer(s, cgroup.NewPods(pods, pods))
	qosv1.RegisterQOSServiceServer(s, qos.New(loop, layout))

	root, err := layout.Literal(layout.Root())
	if err != nil {
		return err
	}
	podRoot, err := layout.Literal(a.podRoot())
	if err != nil {
		return err
	}
	c := a.Config
	nodev1.RegisterNodeServiceServer(s, node.New(node.Parts{
		Machine: a.Machine, Node: a.wholeNode, View: a.Ledger.View, Status: a.nodeStatus,
		Config: &nodev1.GetConfigResponse{
			CgroupVersion: int32(facts.Version), CgroupDriver: string(facts.Driver),
			CgroupRoot: root, PodCgroupRoot: podRoot, Controllers: facts.Controllers,
			EnforceNodeAllocatable: c.Node.Enforce,
			SystemReservedCgroup:   c.Node.SystemReservedCgroup, KubeReservedCgroup: c.Node.KubeReservedCgroup,
			NodeFit: c.Node.NodeFit, DriftPolicy: c.Cgroups.DriftPolicy, PodPidsLimit: c.Cgroups.PodPIDsLimit,
			RuntimeEndpoint: c.RuntimeEndpoint, CgroupsPerQos: c.Cgroups.PerQOS,
			MountedSubsystems: subsystems(facts.Subsystems), SystemCgroupsLimit: convert.AmountTexts(a.wholeNode().SystemCgroupsLimit(), nil),
			DevicesUnknown: c.Devices.Unknown, DevicesElsewhere: c.Devices.Elsewhere,
		},
		Version: Version(), Reload: a.Reload,
	}))
	return nil
}

// podRoot is the cgroup that pods lie in: that of all pods, or the configured root where
// pods have none of their own.
func (a *App) podRoot() cgroups.Name {
	if !a.Config.Cgroups.PerQOS {
		return a.layout.Root()
	}
	return a.layout.Pods()
}

// nodeStatus tells how the system is, and what it lacks that the node would want.
func (a *App) nodeStatus(ctx context.Context) (*nodev1.GetStatusResponse, error) {
	out := &nodev1.GetStatusResponse{ResetExtendedResources: a.start.NoDevices}
	if found := a.care.found.Load(); found != nil {
		out.SystemContainers = append(out.SystemContainers, *found...)
	}
	if podRoot, err := a.layout.Literal(a.podRoot()); err == nil {
		out.SystemContainers = append(out.SystemContainers, &nodev1.SystemContainer{Part: nodev1.SystemContainer_PART_PODS, Cgroup: podRoot})
	}
	out.SoftRequirements = lacksQuotas(a.reconcile.QoS.Cgroup.Facts, os.DirFS("/"))
	if a.Config.Cgroups.Tree == config.TreeMemory {
		return out, nil
	}
	differences, err := sysctl.Compare(os.DirFS("/proc"), sysctl.Wanted())
	for _, d := range differences {
		out.KernelSettings = append(out.KernelSettings, d.String())
	}
	if err != nil {
		out.KernelSettings = append(out.KernelSettings, fmt.Sprint(err))
	}
	return out, nil
}

// subsystems gives the message form.
func subsystems(all []cgroups.Subsystem) (out []*nodev1.MountedSubsystem) {
	for _, s := range all {
		out = append(out, &nodev1.MountedSubsystem{
			Name: s.Name, MountPoint: s.MountPoint, HierarchyId: uint32(s.Hierarchy), Version: uint32(s.Version),
		})
	}
	return out
}

// lacksQuotas says so where a tree of version 1 cannot limit CPU time, in the kubelet's
// words: its cpu controller may have been built without. Version 2 always can.
func lacksQuotas(facts cgroups.Facts, root fs.FS) []string {
	i := slices.IndexFunc(facts.Subsystems, func(s cgroups.Subsystem) bool { return s.Name == "cpu" && s.Version == cgroups.V1 })
	if i < 0 {
		return nil
	}
	for _, file := range []string{"cpu.cfs_period_us", "cpu.cfs_quota_us"} {
		if _, err := fs.Stat(root, path.Join(strings.TrimPrefix(facts.Subsystems[i].MountPoint, "/"), file)); err != nil {
			return []string{"CPU hardcapping unsupported"}
		}
	}
	return nil
}
