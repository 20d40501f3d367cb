package allocation

import (
	"iter"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
)

// event is one event with the values that filters compare.
type event struct {
	*allocationv1.Event
	kind allocationv1.EventType
	// pod is the pod of the event or of its container. before is the replaced record. Both
	// may be nil.
	pod, before *ledger.Pod
	// resource is set for device events.
	resource string
}

// change has the events of one commit.
type change struct {
	revision uint64
	events   []event
}

// longestMessage limits the bytes of events in one message; a larger single event is sent
// alone. By default clients refuse messages of more than 4 MiB.
const longestMessage = 1 << 20

// messages groups events into at least one message. The last message has the given
// revision. Each earlier message has the revision that told returns for the first event of
// the next message. Events are taken from the iterator one message at a time.
func messages(events iter.Seq[event], told func(next event) uint64, revision uint64, longest int) iter.Seq[*allocationv1.WatchResponse] {
	return func(yield func(*allocationv1.WatchResponse) bool) {
		m, size := &allocationv1.WatchResponse{}, 0
		for e := range events {
			n := proto.Size(e.Event)
			if size > 0 && size+n > longest {
				if m.Revision = told(e); !yield(m) {
					return
				}
				m, size = &allocationv1.WatchResponse{}, 0
			}
			m.Events, size = append(m.Events, e.Event), size+n
		}
		m.Revision = revision
		yield(m)
	}
}

// before returns the last complete revision for a reader that has received some, but not
// all, events of a commit.
func before(next event) uint64 { return next.GetRevision() - 1 }

// changes computes the events of a commit.
func (c commit) changes() *change {
	out := &change{revision: c.new.Revision()}
	for _, change := range ledger.Changes(c.old, c.new) {
		out.events = append(out.events, c.event(change))
	}
	if shared := c.new.SharedCPUs(); shared != c.old.SharedCPUs() {
		out.events = append(out.events, sharedCPUs(c.new))
	}
	if reserved := c.new.Rules().ReservedCPUs; c.new.Override() != c.old.Override() || reserved != c.old.Rules().ReservedCPUs {
		out.events = append(out.events, policy(c.new))
	}
	if offline := c.new.Rules().OfflineCPUs; offline != c.old.Rules().OfflineCPUs || c.new.Machine() != c.old.Machine() {
		out.events = append(out.events, machine(c.new))
	}
	for _, e := range out.events {
		e.Revision = out.revision
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
		return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Bound{Bound: out}}, kind: allocationv1.EventType_EVENT_TYPE_BOUND, pod: pod}
	}
	pod, _ := c.old.Pod(owner.Pod)
	return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Unbound{Unbound: out}}, kind: allocationv1.EventType_EVENT_TYPE_UNBOUND, pod: pod}
}

// allocated returns the allocation of a pod, with the health of its devices.
func allocated(view *ledger.View, pod *ledger.Pod, devices *device.Snapshot) *typesv1.PodAllocation {
	out := convert.Allocation(view, pod)
	convert.PodHealth(out, devices, convert.Health)
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
		Event: &allocationv1.Event{Event: &allocationv1.Event_SharedCpus{SharedCpus: convert.CPUSet(view.SharedCPUs())}},
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
		Cpus: convert.CPUSet(view.Machine().CPUs()), OfflineCpus: convert.CPUSet(view.Rules().OfflineCPUs),
	}
	return event{Event: &allocationv1.Event{Event: &allocationv1.Event_Machine{Machine: out}}, kind: allocationv1.EventType_EVENT_TYPE_MACHINE}
}
