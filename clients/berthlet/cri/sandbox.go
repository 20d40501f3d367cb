package cri

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"slices"
	"syscall"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/clients/affinity"
	"github.com/berthd/berth/clients/berthlet/container"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Labels and annotations of berthlet, in addition to the kubelet's.
const (
	ownerLabel      = "berthlet.berthd.github.io/owner"
	podAnnotation   = "berthlet.berthd.github.io/pod"
	pauseAnnotation = "berthlet.berthd.github.io/pause"
	// restartCount is where kubelets keep the attempt.
	restartCount = "io.kubernetes.container.restartCount"
)

// Open implements container.Runtime. A broken sandbox is stopped with its containers, because
// they would not share namespaces with new ones.
func (r *Runtime) Open(ctx context.Context, p container.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return wrap(r.open(ctx, p), "open pod %s", p.UID)
}

func (r *Runtime) open(ctx context.Context, p container.Pod) error {
	all, err := r.sandboxes(ctx, p.UID)
	if err != nil {
		return err
	}
	attempt := uint32(0)
	for _, s := range all {
		if s.GetState() == criv1.PodSandboxState_SANDBOX_READY {
			return r.moveSandbox(ctx, s.GetId(), p.SandboxCPUs)
		}
		attempt = max(attempt, s.GetMetadata().GetAttempt()+1)
		if _, err := r.cri.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil {
			return err
		}
	}
	config, err := r.sandboxConfig(p, attempt)
	if err != nil {
		return err
	}
	made, err := r.cri.RunPodSandbox(ctx, &criv1.RunPodSandboxRequest{Config: config})
	if err != nil {
		return err
	}
	return r.moveSandbox(ctx, made.GetPodSandboxId(), p.SandboxCPUs)
}

// moveSandbox sets the CPUs of a sandbox's process. CRI has no field for that. Runtimes report
// the process in the verbose status. The kernel refuses CPUs if none of them
// is online in the process's cgroup, such as reserved CPUs with strict-cpu-reservation. The process then stays on the CPUs
// of its cgroup, which berthd keeps free of exclusive ones.
func (r *Runtime) moveSandbox(ctx context.Context, id, cpus string) error {
	set, err := cpuset.Parse(cpus)
	if err != nil || set.IsEmpty() {
		return err
	}
	answer, err := r.cri.PodSandboxStatus(ctx, &criv1.PodSandboxStatusRequest{PodSandboxId: id, Verbose: true})
	if err != nil {
		return err
	}
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(answer.GetInfo()["info"]), &info); err != nil || info.PID <= 0 {
		return nil // the runtime reports no process, or has none
	}
	if err := affinity.Set(info.PID, set); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EINVAL) {
		return err
	}
	return nil
}

// Close implements container.Runtime.
func (r *Runtime) Close(ctx context.Context, uid string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return wrap(r.close(ctx, uid), "close pod %s", uid)
}

func (r *Runtime) close(ctx context.Context, uid string) error {
	all, err := r.sandboxes(ctx, uid)
	if err != nil {
		return err
	}
	for _, s := range all {
		if _, err := r.cri.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: s.GetId()}); err != nil && !missing(err) {
			return err
		}
		if _, err := r.cri.RemovePodSandbox(ctx, &criv1.RemovePodSandboxRequest{PodSandboxId: s.GetId()}); err != nil && !missing(err) {
			return err
		}
	}
	return nil
}

// Opened implements container.Runtime.
func (r *Runtime) Opened(ctx context.Context) (uids []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := r.sandboxes(ctx, "")
	for _, s := range all {
		uids = append(uids, s.GetLabels()[types.KubernetesPodUIDLabel])
	}
	slices.Sort(uids)
	return slices.Compact(uids), wrap(err, "list the sandboxes of pods")
}

// sandboxes lists the sandboxes of a pod, or of all pods of this berthlet if uid is empty.
func (r *Runtime) sandboxes(ctx context.Context, uid string) ([]*criv1.PodSandbox, error) {
	answer, err := r.cri.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{LabelSelector: r.labels(uid)}})
	return answer.GetItems(), err
}

// labels select what this berthlet has made: for a pod, or for all if uid is empty.
func (r *Runtime) labels(uid string) map[string]string {
	out := map[string]string{ownerLabel: r.Owner}
	if uid != "" {
		out[types.KubernetesPodUIDLabel] = uid
	}
	return out
}

// ready returns the ready sandbox of an open pod, with its configuration.
func (r *Runtime) ready(ctx context.Context, uid string) (id string, config *criv1.PodSandboxConfig, err error) {
	all, err := r.sandboxes(ctx, uid)
	if err != nil {
		return "", nil, err
	}
	for _, s := range all {
		if s.GetState() != criv1.PodSandboxState_SANDBOX_READY {
			continue
		}
		var p container.Pod
		if err := json.Unmarshal([]byte(s.GetAnnotations()[podAnnotation]), &p); err != nil {
			return "", nil, errdefs.Corruptf("annotation %s of sandbox %s: %w", podAnnotation, s.GetId(), err)
		}
		config, err := r.sandboxConfig(p, s.GetMetadata().GetAttempt())
		return s.GetId(), config, err
	}
	return "", nil, errdefs.Preconditionf("pod %s is not open", uid)
}

// sandboxConfig describes a sandbox. An annotation contains the pod, because CRI requires the
// sandbox's description for every container.
func (r *Runtime) sandboxConfig(p container.Pod, attempt uint32) (*criv1.PodSandboxConfig, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	out := &criv1.PodSandboxConfig{
		Metadata:     &criv1.PodSandboxMetadata{Name: p.Name, Namespace: p.Namespace, Uid: p.UID, Attempt: attempt},
		LogDirectory: logDir(p),
		Labels: map[string]string{
			ownerLabel:                        r.Owner,
			types.KubernetesPodUIDLabel:       p.UID,
			types.KubernetesPodNameLabel:      p.Name,
			types.KubernetesPodNamespaceLabel: p.Namespace,
		},
		Annotations: map[string]string{podAnnotation: string(text)},
		Linux: &criv1.LinuxPodSandboxConfig{
			CgroupParent:    p.CgroupParent,
			Sysctls:         p.Sysctls,
			SecurityContext: sandboxSecurity(p),
		},
	}
	if !p.HostNetwork {
		out.Hostname = p.Hostname
	}
	return out, nil
}

// sandboxSecurity confines the process that holds the namespaces, if there is one. A
// runtime makes privileged containers in a privileged sandbox only.
func sandboxSecurity(p container.Pod) *criv1.LinuxSandboxSecurityContext {
	out := &criv1.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(p.HostNetwork, p.HostPID, p.HostIPC), Privileged: p.Privileged, SupplementalGroups: p.Groups,
		Seccomp: &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault},
	}
	if p.Privileged {
		out.Seccomp.ProfileType = criv1.SecurityProfile_Unconfined
	}
	return out
}

// logDir is where the logs of a pod are; all of their paths begin with it.
func logDir(p container.Pod) string {
	if p.LogDir == "" {
		return "/"
	}
	return p.LogDir
}

// namespaces returns the namespaces that a pod shares with the machine. The containers of a pod
// share all namespaces except the one of processes.
func namespaces(network, pid, ipc bool) *criv1.NamespaceOption {
	out := &criv1.NamespaceOption{Network: criv1.NamespaceMode_POD, Pid: criv1.NamespaceMode_CONTAINER, Ipc: criv1.NamespaceMode_POD}
	if network {
		out.Network = criv1.NamespaceMode_NODE
	}
	if pid {
		out.Pid = criv1.NamespaceMode_NODE
	}
	if ipc {
		out.Ipc = criv1.NamespaceMode_NODE
	}
	return out
}
