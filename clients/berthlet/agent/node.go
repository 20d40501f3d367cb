package agent

import (
	"context"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
)

// Node is berthd. Errors are those of package berth.
type Node interface {
	// Ready returns when berthd serves, Lost when it does not any more, or when the
	// context ends.
	Ready(ctx context.Context) error
	Lost(ctx context.Context)
	// Sync sends the pods that live. Those that are admitted after living was called are
	// let live.
	Sync(ctx context.Context, living func(context.Context) ([]string, error)) error
	Admit(ctx context.Context, pod *typesv1.Pod) (*admissionv1.AdmitResponse, error)
	// Knows reports whether a pod is admitted, and the ids of its containers that are bound.
	Knows(ctx context.Context, uid string) (known bool, bound []string, err error)
	// Remove reports whether the pod was admitted.
	Remove(ctx context.Context, uid string) (bool, error)
	Allocate(ctx context.Context, uid, container string) (*allocationv1.AllocateResponse, error)
	// NoDevices means that berthd knew no device resource when it started.
	NoDevices(ctx context.Context) (bool, error)
	// ReservedCPUs are those that no container ever gets exclusively.
	ReservedCPUs(ctx context.Context) (string, error)
	PreStart(ctx context.Context, uid, container, id string, pid int) error
	PostStop(ctx context.Context, id string) error
}

// Berthd is the node behind a client.
type Berthd struct{ *berth.Client }

// callTimeout bounds a call: more than a plugin may take for its part of an
// admission, so that what is not over then hangs.
const callTimeout = 2 * time.Minute

var _ Node = Berthd{}

// Ready implements Node.
func (b Berthd) Ready(ctx context.Context) error { return b.WaitReady(ctx) }

// Lost implements Node: berthd's health service ends its streams when it stops,
// and the connection ends with it when it is killed.
func (b Berthd) Lost(ctx context.Context) {
	watch, err := healthv1.NewHealthClient(b.Conn()).Watch(ctx, &healthv1.HealthCheckRequest{})
	for err == nil {
		_, err = watch.Recv()
	}
}

// Sync implements Node.
func (b Berthd) Sync(ctx context.Context, living func(context.Context) ([]string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.Client.SyncPods(ctx, living)
	return err
}

// Admit implements Node.
func (b Berthd) Admit(ctx context.Context, pod *typesv1.Pod) (*admissionv1.AdmitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return b.AdmitPod(ctx, pod)
}

// Knows implements Node.
func (b Berthd) Knows(ctx context.Context, uid string) (known bool, bound []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := b.Allocation().Get(ctx, &allocationv1.GetRequest{Subject: &allocationv1.GetRequest_PodUid{PodUid: uid}})
	if berth.NeedsAdmission(err) {
		return false, nil, nil
	}
	for _, c := range answer.GetPod().GetContainers() {
		bound = append(bound, c.GetContainerIds()...)
	}
	return err == nil, bound, err
}

// Remove implements Node.
func (b Berthd) Remove(ctx context.Context, uid string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := b.RemovePod(ctx, uid)
	return answer.GetRemoved(), err
}

// Allocate implements Node.
func (b Berthd) Allocate(ctx context.Context, uid, container string) (*allocationv1.AllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return b.Client.Allocate(ctx, uid, container)
}

// NoDevices implements Node.
func (b Berthd) NoDevices(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	status, err := b.Client.Node().GetStatus(ctx, &nodev1.GetStatusRequest{})
	return status.GetResetExtendedResources(), err
}

// ReservedCPUs implements Node.
func (b Berthd) ReservedCPUs(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	state, err := b.CPU().GetState(ctx, &cpuv1.GetStateRequest{})
	return state.GetReserved().GetList(), err
}

// PreStart implements Node.
func (b Berthd) PreStart(ctx context.Context, uid, container, id string, pid int) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.PreStartContainer(ctx, uid, container, id, pid)
	return err
}

// PostStop implements Node.
func (b Berthd) PostStop(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := b.PostStopContainer(ctx, id)
	return err
}
