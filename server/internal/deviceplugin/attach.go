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

// Ended is closed when nothing of the connection runs any more: the plugin has
// gone, a newer one has taken its place, or it was detached.
func (a Attached) Ended() <-chan struct{} { return a.session.ended }

// Detach ends the connection, as if the plugin had gone, and waits until it has
// ended.
func (a Attached) Detach() {
	a.session.cancel(errDetached)
	<-a.session.ended
}

// Supports checks what a plugin that was found says of itself: its resource's
// name, and whether one of the API versions that it knows is berth's. Errors are
// of class Invalid and Unsupported.
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

// Attach connects to the plugin of a resource at the path of its socket and makes
// it the one that serves the resource, as Register does for a plugin that calls.
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
