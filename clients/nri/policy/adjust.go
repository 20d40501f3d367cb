package policy

import (
	"fmt"
	"os"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/errdefs"
)

// adjustment is what a container gets that has a place. CPU weight, quota and
// memory are the kubelet's, which knows them exactly, except for a container that
// is free of a quota on CPUs of its own.
func adjustment(a *allocationv1.AllocateResponse, free bool) (*api.ContainerAdjustment, error) {
	out := &api.ContainerAdjustment{}
	l := a.GetLinux()
	if l.GetCpusetCpus() != "" {
		out.SetLinuxCPUSetCPUs(l.GetCpusetCpus())
	}
	if l.GetCpusetMems() != "" {
		out.SetLinuxCPUSetMems(l.GetCpusetMems())
	}
	if free {
		out.SetLinuxCPUQuota(-1)
	}
	for _, e := range a.GetEnvs() {
		out.AddEnv(e.GetName(), e.GetValue())
	}
	for _, m := range a.GetMounts() {
		access := "rw"
		if m.GetReadOnly() {
			access = "ro"
		}
		out.AddMount(&api.Mount{Destination: m.GetContainerPath(), Source: m.GetHostPath(), Type: "bind", Options: []string{"rbind", "rprivate", access}})
	}
	for key, value := range a.GetAnnotations() {
		out.AddAnnotation(key, value)
	}
	for _, name := range a.GetCdiDevices() {
		out.AddCDIDevice(&api.CDIDevice{Name: name})
	}
	for _, d := range a.GetDevices() {
		device, err := deviceNode(d)
		if err != nil {
			return nil, err
		}
		out.AddDevice(device)
	}
	return out, nil
}

// deviceNode describes a device file by its numbers. NRI has no place for the
// permissions: the runtime allows everything on a device that a plugin adds.
func deviceNode(d *allocationv1.DeviceNode) (*api.LinuxDevice, error) {
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
		Path: d.GetContainerPath(), Type: kind, Major: major(stat.Rdev), Minor: minor(stat.Rdev),
		FileMode: api.FileMode(info.Mode().Perm()), Uid: api.UInt32(stat.Uid), Gid: api.UInt32(stat.Gid),
	}, nil
}

// The kernel's split of a device number, as makedev(3) has it.
func major(dev uint64) int64 { return int64(dev>>8&0xfff | dev>>32&^0xfff) }
func minor(dev uint64) int64 { return int64(dev&0xff | dev>>12&^0xff) }
