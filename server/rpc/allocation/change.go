package allocation

import (
	"iter"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/device"
	"github.com/berthd/berth/managers/ledger"
)

// event is one event with what filters compare.
type event struct {
	*allocationv1.Event
	kind allocationv1.EventType
	// pod is what the event is about, or the pod of its container; before is the record
	// that was replaced. Both are nil where there is none.
	pod, before *ledger.Pod
	// resource is what an event of devices is about.
	resource string
}

// change is what one commit has changed.
type change struct {
	revision uint64
	events   []event

	// encoded are the messages to streams without filters, made by the first that sends
	// them.
	once    sync.Once
	encoded []*grpc.PreparedMsg
	err     error
}

// sendTo sends the messages of a change to a stream that wants all of it. Streams differ
// in nothing that their encoding depends on: berthd knows no compression.
func (c *change) sendTo(stream grpc.ServerStream, longest int) error {
	c.once.Do(func() {
		for m := range messages(c.events, c.revision-1, c.revision, longest) {
			e := &grpc.PreparedMsg{}
			if c.err = e.Encode(stream, m); c.err != nil {
				return
			}
			c.encoded = append(c.encoded, e)
		}
	})
	if c.err != nil {
		return c.err
	}
	for _, e := range c.encoded {
		if err := stream.SendMsg(e); err != nil {
			return err
		}
	}
	return nil
}

// longestMessage is how many bytes of events come in one message, unless one event has
// more. Clients refuse messages of more than 4 MiB by default.
const longestMessage = 1 << 20

// messages puts events into messages, at least one. All but the last have a revision of
// before, so that a reader that stops between them is told all of them again.
func messages(events []event, before, revision uint64, longest int) iter.Seq[*allocationv1.WatchResponse] {
	return func(yield func(*allocationv1.WatchResponse) bool) {
		m, size := &allocationv1.WatchResponse{}, 0
		for _, e := range events {
			n := proto.Size(e.Event)
			if size > 0 && size+n > longest {
				if m.Revision = before; !yield(m) {
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

// changes returns the events of what a commit has changed.
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
	return out
}

// event returns the event of one change of pods or container ids.
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

// allocated returns what a pod holds, with the health of its devices.
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
