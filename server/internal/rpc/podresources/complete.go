package podresources

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/berthd/berth/managers/device"
)

// MissingHeader is the metadata of an answer to GetAllocatableResources that was
// given although plugins are still expected back: the names of their resources.
const MissingHeader = "berth-missing-resources"

// margin is what is left of a caller's time for the answer itself.
const margin = time.Second

// complete returns the devices once every plugin that was there before a start of
// berthd is back. It waits for that within berthd's and the caller's deadlines:
// some readers ask once in their life, and would miss the devices for good.
func (s *service) complete(ctx context.Context) (*device.Snapshot, error) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-margin))
		defer cancel()
	}
	for waiting := true; ; {
		snap := s.Inventory.Inventory()
		missing := awaited(snap)
		if len(missing) == 0 {
			return snap, nil
		}
		if !waiting {
			md := metadata.MD{}
			md.Append(MissingHeader, missing...)
			return snap, grpc.SetHeader(ctx, md)
		}
		select {
		case <-snap.Superseded():
		case <-s.Timeout:
			waiting = false
		case <-ctx.Done():
			waiting = false
		}
	}
}

// awaited lists the resources whose plugins are to come back.
func awaited(snap *device.Snapshot) (names []string) {
	for r := range snap.Resources() {
		if r.Awaited() {
			names = append(names, r.Name)
		}
	}
	return names
}
