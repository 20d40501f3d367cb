package policy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/containerd/nri/pkg/api"
	"golang.org/x/sys/unix"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
)

// adjustment converts a container's allocation for the runtime. CPU weight, quota and memory stay
// as the kubelet has set them. The exception is a container with exclusive CPUs that must have no
// quota.
func adjustment(a *allocationv1.AllocateResponse, free bool) (*api.ContainerAdjustment, error) {
	out := &api.ContainerAdjustment{}
	l, edits := a.GetResources(), a.GetEdits()
	if cpus := l.GetCpusetCpus().GetList(); cpus != "" {
		out.SetLinuxCPUSetCPUs(cpus)
	}
	if mems := memoryNodes(l); mems != "" {
		out.SetLinuxCPUSetMems(mems)
	}
	if free {
		out.SetLinuxCPUQuota(-1)
	}
	for _, name := range slices.Sorted(maps.Keys(edits.GetEnvs())) {
		out.AddEnv(name, edits.GetEnvs()[name])
	}
	for _, m := range edits.GetMounts() {
		access := "rw"
		if m.GetReadOnly() {
			access = "ro"
		}
		out.AddMount(&api.Mount{Destination: m.GetContainerPath(), Source: m.GetHostPath(), Type: "bind",
			Options: []string{"rbind", "rprivate", access}})
	}
	for key, value := range edits.GetAnnotations() {
		out.AddAnnotation(key, value)
	}
	for _, d := range edits.GetCdiDevices() {
		out.AddCDIDevice(&api.CDIDevice{Name: d.GetName()})
	}
	for _, d := range edits.GetDevices() {
		device, err := deviceNode(d)
		if err != nil {
			return nil, err
		}
		out.AddDevice(device)
	}
	return out, nil
}

// memoryNodes formats the memory nodes of a container as the kernel and the kubelet do.
func memoryNodes(l *typesv1.LinuxResources) string { return convert.Nodes(l.GetCpusetMems()).Commas() }

// pinnedNodes formats the memory nodes of a container of berthd's list; empty if its memory is not
// bound to nodes.
func pinnedNodes(c *typesv1.ContainerAllocation) string { return memoryNodesOf(c).Commas() }

// deviceNode describes a device file by its numbers. NRI has no place for the
// permissions: the runtime allows everything on a device that a plugin adds.
func deviceNode(d *typesv1.DeviceNode) (*api.LinuxDevice, error) {
	info, err := os.Stat(d.GetHostPath())
	if err != nil {
		return nil, fmt.Errorf("device of the container: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode()&os.ModeDevice == 0 {
		return nil, errdefs.Invalidf("device %s of the container: expected a device file, it is %s", d.GetHostPath(), info.Mode())
	}
	kind := "b"
	if info.Mode()&os.ModeCharDevice != 0 {
		kind = "c"
	}
	return &api.LinuxDevice{
		Path: d.GetContainerPath(), Type: kind, Major: int64(unix.Major(stat.Rdev)), Minor: int64(unix.Minor(stat.Rdev)),
		FileMode: api.FileMode(info.Mode().Perm()), Uid: api.UInt32(stat.Uid), Gid: api.UInt32(stat.Gid),
	}, nil
}
