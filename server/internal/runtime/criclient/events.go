package criclient

import (
	"context"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/server/internal/runtime"
)

// Events calls do for each event until the stream or ctx ends. Earlier events are not
// repeated. The error is of class Unsupported if the runtime has no events, or gives each
// event to one listener only, which would take it from the kubelet (containerd before 2.0).
func (c *Client) Events(ctx context.Context, do func(runtime.Event)) error {
	about, err := c.About(ctx)
	if err != nil {
		return err
	}
	if version, ok := strings.CutPrefix(about, "containerd "); ok && strings.HasPrefix(strings.TrimPrefix(version, "v"), "1.") {
		return errdefs.Unsupportedf("%s gives each event to one listener only", about)
	}
	stream, err := c.cri.GetContainerEvents(ctx, &criv1.GetEventsRequest{})
	for err == nil {
		var e *criv1.ContainerEventResponse
		if e, err = stream.Recv(); err == nil {
			do(runtime.Event{ID: e.GetContainerId(), Pod: e.GetPodSandboxStatus().GetMetadata().GetUid()})
		}
	}
	return c.failed("receive the events", err)
}
