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

// margin is the part of a caller's deadline that is reserved for the answer.
const margin = time.Second

// complete returns the devices after every plugin from before a start of berthd is back. It waits
// within berthd's and the caller's deadlines. Some readers call only once, and would never see
// the devices.
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

// awaited lists the resources whose plugins are expected to come back.
func awaited(snap *device.Snapshot) (names []string) {
	for r := range snap.Resources() {
		if r.Awaited() {
			names = append(names, r.Name)
		}
	}
	return names
}
