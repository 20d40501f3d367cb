package device

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Health tells what is known of a device at a moment.
type Health string

const (
	// Healthy: its plugin is connected and reports so.
	Healthy Health = "Healthy"
	// Unhealthy: its plugin reports so, or is away.
	Unhealthy Health = "Unhealthy"
	// Missing: its plugin does not list it any more, or has been away for longer
	// than the grace period.
	Missing Health = "Missing"
)

// HealthChange is a change of a device's health, or its first appearance.
type HealthChange struct {
	At     time.Time
	Health Health
}

const (
	// HistoryLength is how many changes of a device are remembered: the last ones.
	HistoryLength = 16
	// missingKept is how many devices of a resource that are missing are
	// remembered: those that went last.
	missingKept = 256
)

// Health of a device by its id; Missing also for one that was never listed.
func (r *Resource) Health(id string) Health {
	d, listed := r.Device(id)
	switch {
	case !listed:
		return Missing
	case r.Healthy(d):
		return Healthy
	}
	return Unhealthy
}

// History returns the last changes of a device's health since berthd started,
// oldest first.
func (r *Resource) History(id string) []HealthChange { return slices.Clone(r.history[id]) }

// history are the changes of the devices of a resource, by id. Snapshots share
// it, so it is never changed.
type history map[string][]HealthChange

// noting returns the history with what a resource has become at a time.
func (h history) noting(r *Resource, at time.Time) history {
	changed := history{}
	note := func(id string) {
		have, now := h[id], r.Health(id)
		if n := len(have); n > 0 && have[n-1].Health == now {
			return
		}
		have = have[max(0, len(have)-HistoryLength+1):]
		changed[id] = append(slices.Clone(have), HealthChange{at, now})
	}
	for i := range r.Devices {
		note(r.Devices[i].ID)
	}
	for id := range h {
		note(id)
	}
	if len(changed) == 0 {
		return h
	}
	next := maps.Clone(h)
	if next == nil {
		next = history{}
	}
	maps.Copy(next, changed)
	return next.pruned()
}

// pruned drops the missing devices that went first where there are too many. It
// changes the history, which is not shared yet.
func (h history) pruned() history {
	type gone struct {
		id string
		at time.Time
	}
	var missing []gone
	for id, changes := range h {
		if last := changes[len(changes)-1]; last.Health == Missing {
			missing = append(missing, gone{id, last.At})
		}
	}
	if len(missing) <= missingKept {
		return h
	}
	slices.SortFunc(missing, func(a, b gone) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	for _, m := range missing[:len(missing)-missingKept] {
		delete(h, m.id)
	}
	return h
}
