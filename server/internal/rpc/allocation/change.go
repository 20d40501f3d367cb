package allocation

import (
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/convert/allocations"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/wire"
)

// event is one event with the values that filters compare. The message is nil once it is
// encoded.
type event struct {
	*allocationv1.Event
	// encoded is the event as a part of a WatchResponse; nil before.
	encoded  []byte
	revision uint64 // of an event of the history
	kind     allocationv1.EventType
	// pod is the pod of the event or of its container. before is the replaced record. Both
	// may be nil.
	pod, before *ledger.Pod
	// resource is set for device events.
	resource string
}

// eventsField is the number of the events in a WatchResponse.
var eventsField = (*allocationv1.WatchResponse)(nil).ProtoReflect().Descriptor().Fields().ByName("events").Number()

// encode encodes the event. An event that cannot be encoded stays a message, so that
// sending it fails.
func (e *event) encode() {
	if text, err := wire.EncodeField(eventsField, e.Event); err == nil {
		e.encoded, e.Event = text, nil
	}
}

// size returns the bytes of the event in a message.
func (e *event) size() int {
	if e.encoded != nil {
		return len(e.encoded)
	}
	return proto.Size(e.Event)
}

// longestMessage limits the bytes of events in one message; a larger single event is sent
// alone. Each stream whose reader does not read has two messages in memory.
const longestMessage = 64 << 10

// messages groups events into at least one message. The last message has the given
// revision. Each earlier message has the revision that shown returns for the first event of
// the next message. Events are taken from the iterator one message at a time.
func messages(events iter.Seq[event], shown func(next event) uint64, revision uint64, longest int) iter.Seq[*allocationv1.WatchResponse] {
	return func(yield func(*allocationv1.WatchResponse) bool) {
		m, size, encoded := &allocationv1.WatchResponse{}, 0, []byte(nil)
		// Encoded events are added as bytes: to a client they are events like the others.
		complete := func(revision uint64) *allocationv1.WatchResponse {
			m.Revision = revision
			m.ProtoReflect().SetUnknown(encoded)
			return m
		}
		for e := range events {
			n := e.size()
			if size > 0 && size+n > longest {
				if !yield(complete(shown(e))) {
					return
				}
				m, size, encoded = &allocationv1.WatchResponse{}, 0, nil
			}
			if size += n; e.encoded != nil {
				encoded = append(encoded, e.encoded...)
			} else {
				m.Events = append(m.Events, e.Event)
			}
		}
		yield(complete(revision))
	}
}

// before returns the last complete revision for a reader that has received some, but not
// all, events of a commit.
func before(next event) uint64 { return next.revision - 1 }

// changes computes the events of a commit.
func (c commit) changes() (out []event) {
	for _, change := range ledger.Changes(c.old, c.new) {
		out = append(out, c.event(change))
	}
	if c.new.CommonCPUs() != c.old.CommonCPUs() {
		out = append(out, sharedCPUs(c.new))
	}
	if reserved := c.new.Rules().ReservedCPUs; c.new.Override() != c.old.Override() || reserved != c.old.Rules().ReservedCPUs {
		out = append(out, policy(c.new))
	}
	if c.new.Machine() != c.old.Machine() {
		out = append(out, machine(c.new))
	}
	for i := range out {
		out[i].revision, out[i].Revision = c.new.Revision(), c.new.Revision()
	}
	return out
}

// event converts one change of pods or container ids to an event.
func (c commit) event(change ledger.Change) event {
	switch change.Kind {
	case ledger.PodAdded:
		return added(c.new, change.Pod, c.devices)
	case ledger.PodRemoved:
		return event{
			Event: &allocationv1.Event{Event: &allocationv1.Event_Removed{Removed: allocated(c.old, change.Pod, c.devices)}},
			kind:  allocationv1.EventType_EVENT_TYPE_REMOVED, pod: change.Pod,
		}
	case ledger.PodChanged:
		return event{
			Event: &allocationv1.Event{Event: &allocationv1.Event_Changed{Changed: allocated(c.new, change.Pod, c.devices)}},
			kind:  allocationv1.EventType_EVENT_TYPE_CHANGED, pod: change.Pod, before: change.Before,
		}
	}
	owner := change.Binding.Owner
	out := &allocationv1.ContainerBinding{ContainerId: change.Binding.ID, PodUid: owner.Pod, ContainerName: owner.Container}
	if change.Kind == ledger.Bound {
		pod, _ := c.new.Pod(owner.Pod)
		return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Bound{Bound: out}},
			kind: allocationv1.EventType_EVENT_TYPE_BOUND, pod: pod}
	}
	pod, _ := c.old.Pod(owner.Pod)
	return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Unbound{Unbound: out}},
		kind: allocationv1.EventType_EVENT_TYPE_UNBOUND, pod: pod}
}

// allocated returns the allocation of a pod, with the health of its devices.
func allocated(view *ledger.View, pod *ledger.Pod, devices *device.Snapshot) *typesv1.PodAllocation {
	out := allocations.Pod(view, pod)
	allocations.PodHealth(out, devices, allocations.Health)
	return out
}

func added(view *ledger.View, pod *ledger.Pod, devices *device.Snapshot) event {
	return event{
		Event: &allocationv1.Event{Event: &allocationv1.Event_Added{Added: allocated(view, pod, devices)}},
		kind:  allocationv1.EventType_EVENT_TYPE_ADDED, pod: pod,
	}
}

func sharedCPUs(view *ledger.View) event {
	return event{
		Event: &allocationv1.Event{Event: &allocationv1.Event_SharedCpus{SharedCpus: convert.CPUSet(view.CommonCPUs())}},
		kind:  allocationv1.EventType_EVENT_TYPE_SHARED_CPUS,
	}
}

func policy(view *ledger.View) event {
	out := &allocationv1.PolicyState{ReservedCpus: convert.CPUSet(view.Rules().ReservedCPUs)}
	if o := view.Override(); o != nil {
		out.Overridden, out.SetTime = true, timestamppb.New(o.SetAt)
	}
	return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Policy{Policy: out}}, kind: allocationv1.EventType_EVENT_TYPE_POLICY}
}

func machine(view *ledger.View) event {
	out := &allocationv1.MachineState{
		Cpus: convert.CPUSet(view.Machine().CPUs().Union(view.Machine().Offline())), OfflineCpus: convert.CPUSet(view.Machine().Offline()),
	}
	return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Machine{Machine: out}},
		kind: allocationv1.EventType_EVENT_TYPE_MACHINE}
}
