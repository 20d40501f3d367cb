package allocation

import (
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
)

// A stream that has sent something waits before it sends more: a millisecond for each
// stream there is, and no longer than longestPause. So events are told at once where
// little happens; where much does, all streams together are woken about a thousand times
// a second however many they are, and each sends what has come together.
const (
	pauseEach    = time.Millisecond
	longestPause = 250 * time.Millisecond
)

func (s *service) pause() time.Duration {
	return min(time.Duration(s.streams.Load())*pauseEach, longestPause)
}

// Watch implements AllocationService. Every stream has a place in the history and
// a snapshot of the devices, and looks for what is newer whenever it has sent all;
// so a slow reader delays nobody, and finds its place gone if it is too slow.
func (s *service) Watch(req *allocationv1.WatchRequest, stream grpc.ServerStreamingServer[allocationv1.WatchResponse]) error {
	s.streams.Add(1)
	defer s.streams.Add(-1)
	view := s.Ledger.View()
	if from := req.GetFromRevision(); from > view.Revision() {
		return fault.Gonef("revision %d is none of this ledger, which is at %d: list, and watch from the list's revision", from, view.Revision())
	}
	w := &watch{service: s, stream: stream, revision: req.GetFromRevision()}
	if w.revision == 0 {
		w.revision = view.Revision()
		w.begin(view)
	}
	next, err := s.History.since(w.revision)
	if err != nil {
		return err
	}
	snap := s.Inventory.Inventory()
	w.devices(nil, snap)
	for caughtUp := false; ; caughtUp = true {
		for _, e := range next.events {
			if w.err == nil {
				w.err = e.sendTo(stream)
			}
			w.sent(e.GetRevision())
		}
		if !caughtUp || next.revision > w.revision {
			w.revision = next.revision
			w.send(&allocationv1.WatchResponse{Type: allocationv1.EventType_EVENT_TYPE_BOOKMARK, Revision: w.revision})
		}
		if w.err != nil {
			return w.err
		}
		if caughtUp {
			select {
			case <-time.After(s.pause()):
			case <-stream.Context().Done():
			}
		}
		select {
		case <-next.moved:
		case <-snap.Superseded():
			newer := s.Inventory.Inventory()
			w.devices(snap, newer)
			snap = newer
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if next, err = s.History.since(w.revision); err != nil {
			return err
		}
	}
}

// watch is one stream.
type watch struct {
	*service
	stream grpc.ServerStreamingServer[allocationv1.WatchResponse]
	// revision that the reader has been told.
	revision uint64
	err      error // of the first send that failed
}

func (w *watch) send(e *allocationv1.WatchResponse) {
	if w.err == nil {
		w.err = w.stream.Send(e)
	}
	w.sent(e.GetRevision())
}

// sent notes what the reader has been told, unless that failed.
func (w *watch) sent(revision uint64) {
	if w.err == nil {
		w.revision = revision
	}
}

// begin tells a reader that knows nothing what is there.
func (w *watch) begin(view *ledger.View) {
	for _, p := range w.pods(view, func(*ledger.Pod) bool { return true }) {
		w.send(&allocationv1.WatchResponse{Type: allocationv1.EventType_EVENT_TYPE_ADDED, Revision: view.Revision(), Pod: p})
	}
	w.send(sharedCPUs(view))
}

// devices tells what has changed between two snapshots of the devices: the
// resources, and the health of single devices. Without an older one it tells all
// resources.
func (w *watch) devices(old, new *device.Snapshot) {
	for r := range new.Resources() {
		var before *device.Resource
		if old != nil {
			before, _ = old.Resource(r.Name)
		}
		if before == r {
			continue
		}
		w.send(&allocationv1.WatchResponse{
			Type: allocationv1.EventType_EVENT_TYPE_RESOURCE, Revision: w.revision, Resource: resource(r),
		})
		if old != nil {
			w.healths(before, r)
		}
	}
	if old == nil {
		return
	}
	for before := range old.Resources() {
		if _, known := new.Resource(before.Name); !known {
			gone := &device.Resource{Name: before.Name, State: forgotten}
			w.send(&allocationv1.WatchResponse{
				Type: allocationv1.EventType_EVENT_TYPE_RESOURCE, Revision: w.revision, Resource: resource(gone),
			})
			w.healths(before, gone)
		}
	}
}

// forgotten is the state of a resource that is not known any more.
const forgotten device.State = "forgotten"

// healths tells which devices of a resource have come, gone or changed health.
func (w *watch) healths(before, r *device.Resource) {
	ids := map[string]bool{}
	for _, d := range r.Devices {
		ids[d.ID] = true
	}
	if before == nil {
		before = &device.Resource{}
	}
	for _, d := range before.Devices {
		ids[d.ID] = true
	}
	var held map[string][]string
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		if before.Health(id) == r.Health(id) {
			continue
		}
		if held == nil {
			held = holders(w.Ledger.View(), r.Name)
		}
		known, listed := r.Device(id)
		if !listed {
			known, _ = before.Device(id)
		}
		out := convert.Device(ledger.Device{ID: id, Nodes: known.Nodes, Topology: known.Topology})
		convert.Health(out, r)
		w.send(&allocationv1.WatchResponse{
			Type: allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH, Revision: w.revision,
			Device: &allocationv1.DeviceHealth{Resource: r.Name, Device: out, Holders: held[id]},
		})
	}
}

// holders returns who holds the devices of a resource, by device, as
// "uid/container".
func holders(view *ledger.View, resource string) map[string][]string {
	held := map[string][]string{}
	for c := range view.Claims() {
		if c.Resource != resource || c.Devices == nil {
			continue
		}
		for _, d := range c.Devices.Devices {
			held[d.ID] = append(held[d.ID], c.Owner.String())
		}
	}
	return held
}

// resource returns a device resource in numbers.
func resource(r *device.Resource) *allocationv1.DeviceResource {
	out := &allocationv1.DeviceResource{
		Name: r.Name, Plugin: string(r.State),
		Capacity: int64(r.Capacity()), Allocatable: int64(r.Allocatable()),
	}
	for _, d := range r.Devices {
		if !r.Healthy(d) {
			out.UnhealthyDevices = append(out.UnhealthyDevices, d.ID)
		}
	}
	return out
}
