package cri

import (
	"cmp"
	"context"
	"maps"
	"path/filepath"
	"strconv"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/logs"
	"github.com/berthd/berth/managers/errdefs"
)

// Create implements container.Runtime. The runtime assigns the container's id, which List
// returns; the spec's id is not used.
func (r *Runtime) Create(ctx context.Context, s container.Spec) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return wrap(r.create(ctx, s), "create container %s of pod %s", s.Name, s.PodUID)
}

func (r *Runtime) create(ctx context.Context, s container.Spec) error {
	if s.CgroupPath != "" {
		return errdefs.Preconditionf("berthd makes the cgroups of containers itself: start it with --runtime-endpoint too, so that it leaves them to the runtime and keeps them as they should be")
	}
	all, err := r.list(ctx, s.PodUID)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.GetLabels()[types.KubernetesContainerNameLabel] == s.Name && int(c.GetMetadata().GetAttempt()) == s.Attempt {
			return nil
		}
	}
	sandbox, config, err := r.ready(ctx, s.PodUID)
	if err != nil {
		return err
	}
	image, err := r.image(ctx, s, config)
	if err != nil {
		return err
	}
	what, err := r.describe(s, config, image.GetId())
	if err == nil {
		what.Linux.SecurityContext, err = r.security(ctx, s, image)
	}
	if err != nil {
		return err
	}
	logs, err := logs.Directory(s.LogRoot, s.LogPath)
	if err != nil {
		return err
	}
	_ = logs.Close()
	_, err = r.cri.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: sandbox, Config: what, SandboxConfig: config})
	return err
}

// image returns the image, and pulls it if the policy requires that.
func (r *Runtime) image(ctx context.Context, s container.Spec, sandbox *criv1.PodSandboxConfig) (*criv1.Image, error) {
	spec := &criv1.ImageSpec{Image: s.Image}
	if s.Pull != container.PullAlways {
		there, err := r.images.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: spec})
		switch {
		case err != nil:
			return nil, err
		case there.GetImage() != nil:
			return there.GetImage(), nil
		case s.Pull == container.PullNever:
			return nil, errdefs.Preconditionf("image %s is not on the machine, and its pull policy is Never", s.Image)
		}
	}
	pulled, err := r.images.PullImage(ctx, &criv1.PullImageRequest{Image: spec, SandboxConfig: sandbox})
	if err != nil {
		return nil, err
	}
	spec.Image = cmp.Or(pulled.GetImageRef(), s.Image)
	there, err := r.images.ImageStatus(ctx, &criv1.ImageStatusRequest{Image: spec})
	if err == nil && there.GetImage() == nil {
		err = errdefs.Unavailablef("image %s was pulled, and the runtime does not have it as %s", s.Image, spec.GetImage())
	}
	return there.GetImage(), err
}

// describe converts a container's spec for CRI.
func (r *Runtime) describe(s container.Spec, sandbox *criv1.PodSandboxConfig, image string) (*criv1.ContainerConfig, error) {
	log, err := filepath.Rel(sandbox.GetLogDirectory(), s.LogPath)
	if err != nil || !filepath.IsLocal(log) {
		return nil, errdefs.Invalidf("log %s: expected a path in %s", s.LogPath, sandbox.GetLogDirectory())
	}
	out := &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: s.Name, Attempt: uint32(s.Attempt)},
		Image:    &criv1.ImageSpec{Image: image, UserSpecifiedImage: s.Image},
		Command:  s.Command, Args: s.Args, WorkingDir: s.Dir, LogPath: log,
		Labels:      maps.Clone(sandbox.GetLabels()),
		Annotations: maps.Clone(s.Annotations),
		Linux:       &criv1.LinuxContainerConfig{Resources: resources(s)},
	}
	out.Labels[types.KubernetesContainerNameLabel] = s.Name
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[pauseAnnotation] = s.Pause.String()
	out.Annotations[restartCount] = strconv.Itoa(s.Attempt)
	for _, v := range s.Env {
		out.Envs = append(out.Envs, &criv1.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	for _, m := range s.Mounts {
		out.Mounts = append(out.Mounts, &criv1.Mount{ContainerPath: m.Path, HostPath: m.HostPath, Readonly: m.ReadOnly})
	}
	for _, d := range s.Devices {
		out.Devices = append(out.Devices, &criv1.Device{ContainerPath: d.Path, HostPath: d.HostPath, Permissions: d.Permissions})
	}
	for _, name := range s.CDIDevices {
		out.CDIDevices = append(out.CDIDevices, &criv1.CDIDevice{Name: name})
	}
	return out, nil
}

func resources(s container.Spec) *criv1.LinuxContainerResources {
	v := s.Resources
	out := &criv1.LinuxContainerResources{
		CpusetCpus: v.CPUs, CpusetMems: v.Mems,
		CpuShares: v.CPUShares, CpuQuota: v.CPUQuotaUS, CpuPeriod: v.CPUPeriodUS,
		MemoryLimitInBytes: v.MemoryBytes, MemorySwapLimitInBytes: v.MemorySwapBytes,
		OomScoreAdj: int64(s.OOMScoreAdj), Unified: v.Unified,
	}
	for _, p := range v.HugePages {
		out.HugepageLimits = append(out.HugepageLimits, &criv1.HugepageLimit{PageSize: p.Size, Limit: p.Bytes})
	}
	return out
}
