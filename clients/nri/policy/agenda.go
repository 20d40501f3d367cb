package policy

import (
	"log/slog"
	"sync/atomic"
	"time"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
)

// common is what every job has: the connection to berthd, the log and the clock, and on what it works.
type common struct {
	client *berth.Client
	log    *slog.Logger
	now    func() time.Time // nobody reads the system's
	agenda *agenda
	node   *node
}

// agenda is what the next pass of Follow has to do, and when it comes.
type agenda struct {
	kicked       chan struct{} // a pass is due
	retry        *time.Timer   // kicks after a failure
	room         atomic.Uint64 // grows when resources may have become free
	unreconciled bool          // berthd has not got the list of living pods
	incomplete   bool          // members are left to compare with the ledger
}

// pause is the delay of Follow after a failure. callTimeout is the time for a call of the kubelet or of berthd for which no event waits.
// sweeping is the interval of checks for ended processes. compareInterval is the interval of comparisons without an event.
const (
	pause           = time.Second
	callTimeout     = 5 * time.Second
	sweeping        = 2 * time.Second
	compareInterval = 30 * time.Second
)

// kick lets Follow compare.
func (a *agenda) kick() {
	select {
	case a.kicked <- struct{}{}:
	default: // a pass is due already
	}
}

// later lets Follow compare after a pause. The caller holds mu.
func (a *agenda) later() { a.in(&a.retry, pause) }

// in lets Follow compare after some time. The caller holds mu.
func (a *agenda) in(timer **time.Timer, d time.Duration) {
	if *timer == nil {
		*timer = time.AfterFunc(d, a.kick)
	} else {
		(*timer).Reset(d)
	}
}

// unsure makes reconcile compare the pod with the ledger, because a failed call may have changed it. If the pod ends
// before the call is repeated, nothing else would release what berthd has committed.
func (a *agenda) unsure(err error) {
	if undecided(err) || berth.NeedsAdmission(err) {
		a.unreconciled = true
		a.kick()
	}
}

// frees are the events after which a refused pod may fit.
var frees = map[allocationv1.EventType]bool{
	allocationv1.EventType_EVENT_TYPE_REMOVED: true, allocationv1.EventType_EVENT_TYPE_CHANGED: true,
	allocationv1.EventType_EVENT_TYPE_SHARED_CPUS: true, allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE: true,
	allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH: true, allocationv1.EventType_EVENT_TYPE_POLICY: true,
	allocationv1.EventType_EVENT_TYPE_MACHINE: true,
}

// eventType returns the type of an event of berthd.
func eventType(e *allocationv1.Event) allocationv1.EventType {
	switch e.GetEvent().(type) {
	case *allocationv1.Event_Removed:
		return allocationv1.EventType_EVENT_TYPE_REMOVED
	case *allocationv1.Event_Changed:
		return allocationv1.EventType_EVENT_TYPE_CHANGED
	case *allocationv1.Event_SharedCpus:
		return allocationv1.EventType_EVENT_TYPE_SHARED_CPUS
	case *allocationv1.Event_DeviceResource:
		return allocationv1.EventType_EVENT_TYPE_DEVICE_RESOURCE
	case *allocationv1.Event_DeviceHealth:
		return allocationv1.EventType_EVENT_TYPE_DEVICE_HEALTH
	case *allocationv1.Event_Policy:
		return allocationv1.EventType_EVENT_TYPE_POLICY
	case *allocationv1.Event_Machine:
		return allocationv1.EventType_EVENT_TYPE_MACHINE
	}
	return allocationv1.EventType_EVENT_TYPE_UNSPECIFIED
}

// compareAgain lets the next pass compare a member with the ledger.
func (a *agenda) compareAgain(m *member) { m.match, a.incomplete = max(m.match, due), true }
