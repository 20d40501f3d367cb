package deviceplugin

import (
	"context"

	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/workload"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Attached is a plugin that did not call but was found (pluginregistration v1).
type Attached struct{ session *session }

// Ended is closed when the connection has ended: the plugin has disconnected, was replaced by a
// newer one, or was detached.
func (a Attached) Ended() <-chan struct{} { return a.session.ended }

// Detach closes the connection, as if the plugin had disconnected, and waits for its end.
func (a Attached) Detach() {
	a.session.cancel(errDetached)
	<-a.session.ended
}

// Supports checks the data of a discovered plugin: its resource's name, and that one of its API
// versions is berth's. Errors are of class Invalid and Unsupported.
func (s *Server) Supports(resource string, versions []string) error {
	for _, v := range versions {
		if v == pluginapi.Version {
			if !workload.Resource(resource).IsExtended() {
				return errdefs.Invalidf("the ResourceName %q is invalid", resource)
			}
			return nil
		}
	}
	return errdefs.Unsupportedf("manager version, %s, is not among plugin supported versions %q", pluginapi.Version, versions)
}

// Attach connects to a plugin's socket and makes the plugin serve the resource. Register does the
// same for a plugin that registers itself.
func (s *Server) Attach(ctx context.Context, resource, path string) (Attached, error) {
	p, err := s.connect(ctx, resource, path)
	if err != nil {
		return Attached{}, err
	}
	p.found = true
	return Attached{p}, s.install(ctx, p)
}

// Vacant waits until no plugin is connected for a resource. The error is that of
// ctx.
func (s *Server) Vacant(ctx context.Context, resource string) error {
	for {
		snap := s.Inventory.Snapshot()
		if r, ok := snap.Resource(resource); !ok || r.State != device.Connected {
			return nil
		}
		select {
		case <-snap.Superseded():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
