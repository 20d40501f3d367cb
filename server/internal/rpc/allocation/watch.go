package allocation

import (
	"iter"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// After sending, a stream pauses: a millisecond for each stream, at most longestPause. So
// with few streams events are sent almost at once. With many, the streams wait for common
// moments, and all events between two moments form one message for all of them.
const (
	pauseEach    = time.Millisecond
	longestPause = 250 * time.Millisecond
)

// pause returns the time until the next common moment.
func (s *service) pause() time.Duration {
	p := min(time.Duration(s.History.streams.Load())*pauseEach, longestPause)
	return p - time.Since(s.begun)%p
}

// Watch implements AllocationService. Each stream has its own position in the history and
// its own snapshot of the devices. When it has sent everything, it reads the next page. So
// a slow reader delays no other; if it is too slow, its position is no longer kept and the
// stream ends.
func (s *service) Watch(req *allocationv1.WatchRequest, stream grpc.ServerStreamingServer[allocationv1.WatchResponse]) error {
	s.History.streams.Add(1)
	defer s.History.streams.Add(-1)
	wanted, err := readFilter(req)
	if err != nil {
		return err
	}
	view, from := s.Ledger.View(), req.GetFromRevision()
	if from > view.Revision() {
		return errdefs.Gonef("revision %d is of another ledger, this one is at %d: list, and watch from the list's revision", from,
			view.Revision())
	}
	w := &watch{service: s, stream: stream, filter: wanted, revision: from}
	if from == 0 {
		w.revision = view.Revision()
	}
	next, err := s.History.since(w.revision, true)
	if err != nil {
		return err
	}
	snap := s.Inventory.Inventory()
	w.begin(view, from, snap)
	for caughtUp := false; ; caughtUp = true {
		end, err := w.turn()
		if err != nil {
			return err
		}
		w.sendNext(next, !caughtUp)
		end()
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
			if events := w.filter.of(w.devices(snap, newer)); len(events) > 0 {
				w.send(events, w.revision, false)
			}
			snap = newer
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
		if next, err = s.History.since(w.revision, false); err != nil {
			return err
		}
	}
}

// watch is the state of one stream.
type watch struct {
	*service
	stream grpc.ServerStreamingServer[allocationv1.WatchResponse]
	filter filter
	// revision is the reader's revision.
	revision uint64
	err      error // the first failed send
}

// send sends events that only this stream sends, with the current revision. All messages
// except the last have the revision before.
func (w *watch) send(events []event, before uint64, initial bool) {
	for _, e := range events {
		e.Revision = w.revision
	}
	w.sendAll(messages(slices.Values(events), func(event) uint64 { return before }, w.revision, w.History.longest), initial)
}

func (w *watch) sendAll(messages iter.Seq[*allocationv1.WatchResponse], initial bool) {
	for m := range messages {
		if w.err == nil {
			m.Initial = initial
			w.err = w.stream.Send(m)
		}
		if w.err != nil {
			return
		}
	}
}

// slot waits until the stream may read pods.
func (w *watch) slot() (leave func(), err error) {
	if w.Slot == nil {
		return func() {}, nil
	}
	return w.Slot(w.stream.Context())
}

// turn waits until the stream may compute events.
func (w *watch) turn() (end func(), err error) {
	if w.Turn == nil {
		return func() {}, nil
	}
	return w.Turn(w.stream.Context())
}

// begin sends the initial state: everything to a new reader, and the device resources,
// which are not in the history, to a reader that resumes. One that resumes at the revision of
// the start also gets what a start changes without a commit.
func (w *watch) begin(view *ledger.View, from uint64, snap *device.Snapshot) {
	if from == 0 {
		w.err = w.sendState(view, snap)
		return
	}
	w.send(w.filter.of(append(w.History.sinceStart(from), w.devices(nil, snap)...)), from, true)
}

// sendNext sends a page of the history. If no event carries the new revision, or if due is set,
// it also sends a message without events that has the revision.
func (w *watch) sendNext(next *page, due bool) {
	sent := w.revision
	w.revision = next.revision
	switch {
	case !w.filter.all() || due:
		// Few other streams resume from the same revision, and the page may be long. So
		// each message is created after the previous one was sent, and not kept.
		if events := w.filter.of(next.events); len(events) > 0 {
			w.sendAll(messages(slices.Values(events), before, w.revision, w.History.longest), false)
			sent = w.revision
		}
	case len(next.events) > 0 && w.err == nil:
		w.err, sent = next.sendTo(w.stream, w.History.longest), w.revision
	}
	if due || w.revision > sent {
		w.send(nil, w.revision, false)
	}
}

// devices returns the differences between two snapshots of the devices: the resources, and
// the health of single devices. Without an old snapshot it returns all resources.
func (w *watch) devices(old, new *device.Snapshot) (events []event) {
	for r := range new.Resources() {
		var before *device.Resource
		if old != nil {
			before, _ = old.Resource(r.Name)
		}
		if before == r {
			continue
		}
		events = append(events, resource(r))
		if old != nil {
			events = append(events, w.healths(before, r)...)
		}
	}
	if old == nil {
		return events
	}
	for before := range old.Resources() {
		if _, known := new.Resource(before.Name); !known {
			gone := &device.Resource{Name: before.Name, State: forgotten}
			events = append(append(events, resource(gone)), w.healths(before, gone)...)
		}
	}
	return events
}

// forgotten is the state of a resource that is no longer known.
const forgotten device.State = "forgotten"

// healths returns the devices of a resource that were added, removed or changed their
// health.
func (w *watch) healths(before, r *device.Resource) (events []event) {
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
	var held map[string][]ledger.Owner
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
		allocations.Health(out, r)
		events = append(events, event{
			Event: &allocationv1.Event{Event: &allocationv1.Event_DeviceHealth{
				DeviceHealth: &allocationv1.DeviceHealth{Resource: r.Name, Device: out, Holders: convert.Refs(held[id])},
			}},
			kind: allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH, resource: r.Name,
		})
	}
	return events
}

// holders returns the holders of a resource's devices, by device.
func holders(view *ledger.View, resource string) map[string][]ledger.Owner {
	held := map[string][]ledger.Owner{}
	for c := range view.Claims() {
		if c.Resource != resource || c.Devices == nil {
			continue
		}
		for _, d := range c.Devices.Devices {
			held[d.ID] = append(held[d.ID], c.Owner)
		}
	}
	return held
}

// pluginState returns the message form of a state, one of which only events have.
func pluginState(s device.State) typesv1.PluginState {
	if s == forgotten {
		return typesv1.PluginState_PLUGIN_STATE_FORGOTTEN
	}
	return allocations.PluginState(s)
}

func resource(r *device.Resource) event {
	out := &allocationv1.DeviceResource{
		Name: r.Name, PluginState: pluginState(r.State),
		Capacity: int64(r.Capacity()), Allocatable: int64(r.Allocatable()),
	}
	for _, d := range r.Devices {
		if !r.Healthy(d) {
			out.UnhealthyDevices = append(out.UnhealthyDevices, d.ID)
		}
	}
	return event{
		Event: &allocationv1.Event{Event: &allocationv1.Event_DeviceResource{DeviceResource: out}},
		kind:  allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE, resource: r.Name,
	}
}
