package main

import (
	"context"
	"net"
	"os"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/berthd/berth/managers/errdefs"
)

// registration brings updates to a runtime from which none may be requested: it registers as another plugin, and answers the runtime's
// list of containers with the updates. A runtime makes no list while it handles other calls, so this is only for the end of
// berth-nri. It implements policy.Updater.
type registration struct {
	socket, name, index string
	log                 logger
}

// applying is how long a registration stays after its answer, which the runtime applies without a word.
const applying = time.Second

// UpdateContainers returns when the runtime has had the time to apply the updates. It does not know which ones have failed.
func (r registration) UpdateContainers(updates []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) {
	if os.Getenv(api.PluginSocketEnvVar) != "" {
		return nil, errdefs.Unsupportedf("the runtime has started berth-nri, which cannot register again to update containers")
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", r.socket)
	if err != nil {
		return nil, err
	}
	answered := make(chan struct{})
	last := &lastPlugin{updates: updates, answered: answered}
	plugin, err := stub.New(last, stub.WithConnection(conn), stub.WithPluginName(r.name), stub.WithPluginIdx(r.index),
		stub.WithLogger(r.log))
	if err == nil {
		err = plugin.Start(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	defer plugin.Stop()
	select {
	case <-answered:
	case <-ctx.Done():
		return nil, errdefs.Unavailablef("the runtime has not listed its containers to another plugin: %w", ctx.Err())
	}
	timer := time.NewTimer(applying)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return nil, nil
}

// lastPlugin is the plugin of a registration.
type lastPlugin struct {
	updates  []*api.ContainerUpdate
	answered chan struct{}
}

// Synchronize answers with the updates. A failed one must not fail the others.
func (l *lastPlugin) Synchronize(context.Context, []*api.PodSandbox, []*api.Container) ([]*api.ContainerUpdate, error) {
	defer close(l.answered)
	for _, u := range l.updates {
		u.SetIgnoreFailure()
	}
	return l.updates, nil
}

// RemovePodSandbox does nothing. A plugin must have an event.
func (l *lastPlugin) RemovePodSandbox(context.Context, *api.PodSandbox) error { return nil }

// connected runs a connection to the runtime. A plugin's answer to what happens if it is late is part of its
// registration. So the connection ends, and again is true, when berthd becomes ready for the first time on this node
// while the runtime was told to continue: refuses is what it was told. A plugin that the runtime has started cannot connect again.
func (o *options) connected(ctx context.Context, run func(context.Context) error, away *outage, refuses, started bool) (again bool,
	err error) {
	if refuses || o.failure != refuse || started {
		return false, run(ctx)
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return false, err
		case <-tick.C:
			if again = o.refuses(away); again {
				end()
				return true, <-ended
			}
		}
	}
}
