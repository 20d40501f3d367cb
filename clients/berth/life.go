package berth

import (
	"context"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
)

// This file has the calls of the life of a pod, in their order, for requests without further fields.

// AdmitPod is Admit of a pod.
func (c *Client) AdmitPod(ctx context.Context, pod *typesv1.Pod) (*admissionv1.AdmitResponse, error) {
	return c.Admit(ctx, &admissionv1.AdmitRequest{Subject: &admissionv1.AdmitRequest_Pod{Pod: pod}})
}

// Allocate returns what a container of an admitted pod is made with.
func (c *Client) Allocate(ctx context.Context, podUID, container string) (*allocationv1.AllocateResponse, error) {
	return c.Allocation().Allocate(ctx, &allocationv1.AllocateRequest{
		Subject: &allocationv1.AllocateRequest_PodUid{PodUid: podUID}, ContainerName: container,
	})
}

// PreStartContainer puts the process of a container into its cgroup. id is the caller's name of this start of the container. The
// process stays stopped until the call has returned; 0 is for a container whose cgroup a runtime makes.
func (c *Client) PreStartContainer(ctx context.Context, podUID, container, id string, pid int) (*lifecyclev1.PreStartContainerResponse,
	error) {
	return c.Lifecycle().PreStartContainer(ctx, &lifecyclev1.PreStartContainerRequest{
		PodUid: podUID, ContainerName: container, ContainerId: id, Pid: int32(pid),
	})
}

// PostStopContainer reports that the container that was started as id has ended.
func (c *Client) PostStopContainer(ctx context.Context, id string) (*lifecyclev1.PostStopContainerResponse, error) {
	return c.Lifecycle().PostStopContainer(ctx, &lifecyclev1.PostStopContainerRequest{ContainerId: id})
}

// RemovePod ends a pod of the owner of Options.
func (c *Client) RemovePod(ctx context.Context, podUID string) (*admissionv1.RemovePodResponse, error) {
	return c.Admission().RemovePod(ctx, &admissionv1.RemovePodRequest{PodUid: podUID, Owner: c.owner})
}
