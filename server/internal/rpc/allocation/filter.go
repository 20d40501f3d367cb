package allocation

import (
	"fmt"
	"slices"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// filter selects the events of a stream; the zero value selects all.
type filter struct {
	types                      []allocationv1.EventType
	namespace, resource, owner string
}

// readFilter returns the filter of a request. Errors are of class Invalid.
func readFilter(req *allocationv1.WatchRequest) (filter, error) {
	var vs errdefs.Violations
	for i, t := range req.GetTypes() {
		if _, known := allocationv1.EventType_name[int32(t)]; !known || t == allocationv1.EventType_EVENT_TYPE_UNSPECIFIED {
			vs.Addf(fmt.Sprintf("types[%d]", i), "%d is no type of event", t)
		}
	}
	// Duplicate types are removed, so that each event is compared once.
	types := slices.Compact(slices.Sorted(slices.Values(req.GetTypes())))
	return filter{types: types, namespace: req.GetNamespace(), resource: req.GetResource(), owner: req.GetOwner()}, vs.Err("request")
}

func (f filter) all() bool {
	return len(f.types) == 0 && f.namespace == "" && f.resource == "" && f.owner == ""
}

// key is the same for filters that select the same events.
func (f filter) key() string {
	return fmt.Sprintf("%v %q %q %q", f.types, f.namespace, f.resource, f.owner)
}

// of returns the selected events.
func (f filter) of(events []event) []event {
	if f.all() {
		return events
	}
	return slices.DeleteFunc(slices.Clone(events), func(e event) bool { return !f.passes(e) })
}

func (f filter) passes(e event) bool {
	if len(f.types) > 0 && !slices.Contains(f.types, e.kind) {
		return false
	}
	switch {
	case e.pod != nil:
		return f.has(e.pod) || e.before != nil && f.has(e.before)
	case e.resource != "":
		return f.resource == "" || f.resource == e.resource
	}
	return true
}

// has returns whether a pod's events are selected.
func (f filter) has(p *ledger.Pod) bool {
	return (f.namespace == "" || f.namespace == p.Pod.Namespace) && (f.resource == "" || p.Holds(f.resource)) &&
		(f.owner == "" || f.owner == p.Agent())
}
