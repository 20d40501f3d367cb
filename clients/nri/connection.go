package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/berthd/berth/clients/nri/policy"
	"github.com/berthd/berth/managers/errdefs"
)

// outage wraps the policy for the NRI stub. It limits the log to one line when the runtime
// disconnects, and one when it is back.
type outage struct {
	*policy.Policy
	log     *slog.Logger
	runtime *connection
	away    atomic.Bool
	// subscribed are the events of the last subscription; 0 if the runtime has not called Configure.
	subscribed atomic.Int32
}

// Configure is the runtime's first call on a connection.
func (o *outage) Configure(ctx context.Context, config, runtime, version string) (api.EventMask, error) {
	events, err := o.Policy.Configure(ctx, config, runtime, version)
	o.runtime.requests.Store(err == nil && o.Requests())
	o.subscribed.Store(int32(events))
	return events, err
}

// begin reports whether the connection has just been lost.
func (o *outage) begin() bool {
	o.runtime.up.Store(false)
	return !o.away.Swap(true)
}

// Synchronize is the runtime's second call on a connection.
func (o *outage) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	if o.away.Swap(false) {
		o.log.Info("connected to the runtime again")
	}
	o.runtime.up.Store(true)
	return o.Policy.Synchronize(ctx, pods, containers)
}

// connection is the runtime behind the current stub.
type connection struct {
	stub atomic.Pointer[stub.Stub]
	up   atomic.Bool // the runtime has listed its pods, and is connected since
	// requests means that updates may be requested from this runtime, which may be another one than when they were decided on.
	requests atomic.Bool
}

// ready returns an error without a connection to the runtime.
func (c *connection) ready() error {
	if !c.up.Load() {
		return errors.New("there is no connection to the runtime")
	}
	return nil
}

// timeout is how long the runtime waits for a plugin's response.
func (c *connection) timeout() time.Duration {
	if s := c.stub.Load(); s != nil {
		return (*s).RequestTimeout()
	}
	return stub.DefaultRequestTimeout
}

// UpdateContainers implements policy.Updater.
func (c *connection) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	// The version of a runtime that is just connecting is not known yet.
	if err := c.ready(); err != nil {
		return nil, err
	}
	if !c.requests.Load() {
		return nil, errdefs.Unsupportedf("the runtime takes updates of containers only in answers to its events")
	}
	return (*c.stub.Load()).UpdateContainers(updates)
}

// nriVersion is the version of NRI that the runtime has reported, or that the stub takes it for.
func (c *connection) nriVersion() string { return (*c.stub.Load()).RuntimeNRIVersion() }
