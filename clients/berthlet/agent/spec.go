package agent

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/podspec"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/clients/berthlet/lifecycle"
	"github.com/berthd/berth/clients/berthlet/volume"
	"github.com/berthd/berth/managers/cgroup"
)

// defaultGrace is the API server's default for terminationGracePeriodSeconds.
const defaultGrace = 30 * time.Second

var restarts = map[string]lifecycle.Restart{"Always": lifecycle.Always, "OnFailure": lifecycle.OnFailure, "Never": lifecycle.Never}

// wanted gives a manifest as package lifecycle sees it.
func wanted(m podspec.Manifest) lifecycle.Pod {
	out := lifecycle.Pod{Grace: defaultGrace}
	if s := m.Pod.GetSpec().TerminationGracePeriodSeconds; s != nil {
		out.Grace = time.Duration(*s) * time.Second
	}
	for _, l := range m.Launches {
		c := lifecycle.Container{Name: l.Name, Restart: restarts[l.RestartPolicy]}
		if l.Init {
			c.Role = lifecycle.Init
			if c.Restart == lifecycle.Always {
				c.Role = lifecycle.Sidecar
			}
		}
		out.Containers = append(out.Containers, c)
	}
	return out
}

// containerID names an attempt of a container: for people by its name, for
// machines by the pod's uid too.
func containerID(uid, name string, attempt int) string {
	sum := sha256.Sum256([]byte(uid))
	return fmt.Sprintf("%s-%d-%x", name, attempt, sum[:6])
}

// place is where an agent keeps things of a pod.
type place struct{ pods, logs string }

func (p place) pod(uid string) string { return filepath.Join(p.pods, uid) }

// volume is the folder of a volume that begins empty.
func (p place) volume(uid, name string) string { return filepath.Join(p.pod(uid), "volumes", name) }

// podLogs is where the kubelet has them: NAMESPACE_NAME_UID.
func (p place) podLogs(m podspec.Manifest) string {
	meta := m.Pod.GetMetadata()
	return filepath.Join(p.logs, meta.GetNamespace()+"_"+meta.GetName()+"_"+meta.GetUid())
}

func (p place) log(m podspec.Manifest, name string, attempt int) string {
	return filepath.Join(p.podLogs(m), name, strconv.Itoa(attempt)+".log")
}

// shared describes the pod to a runtime.
func (p place) shared(m podspec.Manifest, parent string) container.Pod {
	meta, spec := m.Pod.GetMetadata(), m.Pod.GetSpec()
	return container.Pod{
		UID: meta.GetUid(), Namespace: meta.GetNamespace(), Name: meta.GetName(), Hostname: m.Hostname,
		HostNamespaces: hostNamespaces(spec), CgroupParent: parent,
		LogDir: p.podLogs(m), Groups: m.Shared.Groups, StrictGroups: m.Shared.StrictGroups, Sysctls: m.Shared.Sysctls,
		Privileged: slices.ContainsFunc(m.Launches, func(l podspec.Launch) bool { return l.Security.Privileged }),
	}
}

// resources are for a runtime that makes the cgroup itself.
func resources(l *typesv1.LinuxResources) container.Resources {
	out := container.Resources{
		CPUs: l.GetCpusetCpus().GetList(), Mems: convert.Nodes(l.GetCpusetMems()).Commas(),
		CPUShares: int64(l.GetCpuShares()), CPUQuotaUS: l.GetCpuQuotaMicroseconds(), CPUPeriodUS: int64(l.GetCpuPeriodMicroseconds()),
		MemoryBytes: l.GetMemoryLimitBytes(), MemorySwapBytes: l.GetMemorySwapLimitBytes(),
		Unified: l.GetUnified(),
	}
	for _, p := range l.GetHugepageLimits() {
		out.HugePages = append(out.HugePages, container.HugePages{
			Size: cgroup.HugePageLabel(int64(p.GetPageSizeBytes())), Bytes: uint64(p.GetLimitBytes()),
		})
	}
	return out
}

func hostNamespaces(spec *typesv1.PodSpec) container.HostNamespaces {
	return container.HostNamespaces{HostNetwork: spec.GetHostNetwork(), HostPID: spec.GetHostPid(), HostIPC: spec.GetHostIpc()}
}

// describe puts a container together from its manifest and from what berthd has
// allocated, without the mounts and without what it may do.
func (p place) describe(m podspec.Manifest, l podspec.Launch, a *allocationv1.AllocateResponse, step lifecycle.Step) container.Spec {
	uid, spec, edits := m.Pod.GetMetadata().GetUid(), m.Pod.GetSpec(), a.GetEdits()
	out := container.Spec{
		ID: containerID(uid, l.Name, step.Attempt), PodUID: uid, Name: l.Name, Attempt: step.Attempt, Pause: step.Pause,
		Image: l.Image, Pull: container.Pull(l.Pull), Command: l.Command, Args: l.Args, Dir: l.WorkingDir,
		HostNamespaces: hostNamespaces(spec),
		Annotations:    edits.GetAnnotations(),
		Cgroup: container.Cgroup{
			CgroupPath: a.GetCgroupPath(), CgroupParent: a.GetCgroupParent(), OOMScoreAdj: int(a.GetResources().GetOomScoreAdj()),
			Resources: resources(a.GetResources()),
		},
		LogRoot: p.logs, LogPath: p.log(m, l.Name, step.Attempt),
	}
	for _, d := range edits.GetCdiDevices() {
		out.CDIDevices = append(out.CDIDevices, d.GetName())
	}
	for _, name := range slices.Sorted(maps.Keys(edits.GetEnvs())) {
		out.Env = append(out.Env, container.Variable{Name: name, Value: edits.GetEnvs()[name]})
	}
	for _, v := range l.Env { // the pod's own come last, and win, as with the kubelet
		out.Env = append(out.Env, container.Variable(v))
	}
	for _, d := range edits.GetDevices() {
		out.Devices = append(out.Devices, container.Device{Path: d.GetContainerPath(), HostPath: d.GetHostPath(),
			Permissions: d.GetPermissions()})
	}
	return out
}

// hostNames are what a pod on the machine's network needs to find others.
var hostNames = []string{"/etc/hosts", "/etc/resolv.conf"}

// mounts lists what appears in a container. Paths below volumes are pinned: the
// containers of the pod can write there, and the runtime mounts later.
func (w *worker) mounts(l podspec.Launch, allocated []*typesv1.Mount) ([]container.Mount, error) {
	var out []container.Mount
	if w.manifest.Pod.GetSpec().GetHostNetwork() {
		for _, path := range hostNames {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				out = append(out, container.Mount{Path: path, HostPath: path, ReadOnly: true})
			}
		}
	}
	for i, vm := range l.Mounts {
		for _, v := range w.manifest.Volumes {
			if v.Name != vm.Volume {
				continue
			}
			source := cmp.Or(v.HostPath, w.place.volume(w.uid, v.Name))
			if vm.SubPath != "" {
				var err error
				if source, err = w.Volumes.Pin(volume.Holder{PodUID: w.uid, Container: l.Name}, i, source, vm.SubPath); err != nil {
					return nil, fmt.Errorf("mount volume %q at %s: %w", v.Name, vm.Path, err)
				}
			}
			out = append(out, container.Mount{Path: vm.Path, HostPath: source, ReadOnly: vm.ReadOnly})
		}
	}
	for _, m := range allocated {
		out = append(out, container.Mount{Path: m.GetContainerPath(), HostPath: m.GetHostPath(), ReadOnly: m.GetReadOnly()})
	}
	return out, nil
}
