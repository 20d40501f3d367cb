package podresources

import (
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/berthd/berth/managers/device"
)

// MissingHeader is the metadata of an answer without some devices: the names of their resources. In List and Get these are
// external devices whose ids are not known; in GetAllocatableResources those of plugins that are still expected back, and those
// that another program's plugins have. Further names that do not fit are MoreMissing.
const (
	MissingHeader = "berth-missing-resources"
	MoreMissing   = "*"
)

// maxMetadata bounds the names in bytes. Readers with another gRPC than Go's accept 8 KiB of metadata.
const maxMetadata = 4 << 10

// name puts the names of missing resources into the metadata of an answer.
func name(ctx context.Context, missing map[string]bool) error {
	if len(missing) == 0 {
		return nil
	}
	md, room := metadata.MD{}, maxMetadata-len(MissingHeader)-len(MoreMissing)
	for _, resource := range slices.Sorted(maps.Keys(missing)) {
		if room -= len(MissingHeader) + len(resource); room < 0 {
			md.Append(MissingHeader, MoreMissing)
			break
		}
		md.Append(MissingHeader, resource)
	}
	return grpc.SetHeader(ctx, md)
}

// margin is the part of a caller's deadline that is reserved for the answer.
const margin = time.Second

// complete returns the devices after every plugin from before a start of berthd is back. It waits
// within berthd's and the caller's deadlines, and then also returns the resources of the others. Some readers call only once,
// and would never see the devices.
func (s *service) complete(ctx context.Context) (snap *device.Snapshot, missing map[string]bool) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-margin))
		defer cancel()
	}
	for waiting := true; ; {
		snap = s.Inventory.Inventory()
		if missing = awaited(snap); len(missing) == 0 || !waiting {
			return snap, missing
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
func awaited(snap *device.Snapshot) map[string]bool {
	names := map[string]bool{}
	for r := range snap.Resources() {
		if r.Awaited() {
			names[r.Name] = true
		}
	}
	return names
}
