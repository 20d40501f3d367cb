package cri

import (
	"cmp"
	"context"
	"slices"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/types"

	"github.com/berthd/berth/clients/berthlet/container"
)

var phases = map[criv1.ContainerState]container.Phase{
	criv1.ContainerState_CONTAINER_CREATED: container.Created,
	criv1.ContainerState_CONTAINER_RUNNING: container.Running,
	criv1.ContainerState_CONTAINER_EXITED:  container.Exited,
	// The runtime has lost sight of it, as one that was killed while it made it. It may
	// run, until the next poll has ended it.
	criv1.ContainerState_CONTAINER_UNKNOWN: container.Running,
}

// Runtimes' reasons of an end that berthlet distinguishes.
const (
	oomKilled = "OOMKilled"
	// unknownEnd is containerd's for a container that ended while it was away.
	unknownEnd = "Unknown"
)

// List implements container.Runtime.
func (r *Runtime) List(ctx context.Context, uid string) ([]container.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	all, err := r.list(ctx, uid)
	if err != nil {
		return nil, wrap(err, "list containers")
	}
	var out []container.Status
	for _, c := range all {
		s, err := r.status(ctx, c.GetId())
		if missing(err) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, wrap(err, "list containers")
		}
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b container.Status) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// list lists what this berthlet has made: for a pod, or for all if uid is empty.
func (r *Runtime) list(ctx context.Context, uid string) ([]*criv1.Container, error) {
	answer, err := r.cri.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: r.labels(uid)}})
	return answer.GetContainers(), err
}

// status returns a container's status; the error is the runtime's own. The status has no process
// id, because the runtime places processes itself.
func (r *Runtime) status(ctx context.Context, id string) (container.Status, error) {
	answer, err := r.cri.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		return container.Status{}, err
	}
	s := answer.GetStatus()
	out := container.Status{
		ID: s.GetId(), PodUID: s.GetLabels()[types.KubernetesPodUIDLabel], Name: s.GetLabels()[types.KubernetesContainerNameLabel],
		Attempt: int(s.GetMetadata().GetAttempt()), Phase: phases[s.GetState()],
		Created: moment(s.GetCreatedAt()), Started: moment(s.GetStartedAt()), Finished: moment(s.GetFinishedAt()),
	}
	out.Pause, _ = time.ParseDuration(s.GetAnnotations()[pauseAnnotation])
	r.mu.Lock()
	end, ended := r.ended[id]
	r.mu.Unlock()
	switch {
	case out.Phase == container.Exited:
		out.ExitCode = int(s.GetExitCode())
		if out.Finished.Before(out.Started) {
			out.Finished = out.Started // containerd notes a start after it, so after a short life too
		}
		switch s.GetReason() {
		case oomKilled:
			out.Reason = container.OOMKilled
		case unknownEnd:
			out.Reason = container.Lost
		}
	case out.Phase == container.Created && ended:
		out.Phase, out.ExitCode, out.Finished = container.Exited, end.code, end.at
	}
	return out, nil
}

// moment reads a time of CRI, where 0 is none.
func moment(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}
