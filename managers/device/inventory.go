package device

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/berthd/berth/managers/ledger"
)

// Session names one registration of a plugin for a resource. The zero value
// names none.
type Session struct {
	Resource string
	number   uint64
}

// Inventory is the state of all plugins' resources: events in, snapshots out. Its
// methods are safe for concurrent use and never wait for anything but each other.
type Inventory struct {
	mu       sync.Mutex
	snapshot *Snapshot // guarded by mu; replaced, never changed
	sessions uint64    // guarded by mu; how many there were
}

// NewInventory starts with the resources that had plugins before a restart.
// They are Expected since now.
func NewInventory(seen []ledger.SeenResource, now time.Time) *Inventory {
	s := newSnapshot(0, nil)
	for _, r := range seen {
		s = s.with(Resource{Name: r.Name, State: Expected, Since: now, Away: now, Options: Options{PreStart: r.PreStart}})
	}
	return &Inventory{snapshot: s}
}

// Snapshot returns the present state, which never changes.
func (inv *Inventory) Snapshot() *Snapshot {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	return inv.snapshot
}

// Expect notes that a resource had a plugin elsewhere, under a kubelet before
// berth. It changes nothing if the resource is known or has a plugin already.
func (inv *Inventory) Expect(resource string, at time.Time) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	if _, ok := inv.snapshot.Resource(resource); !ok {
		inv.put(Resource{Name: resource, State: Expected, Since: at, Away: at})
	}
}

// Registered records a plugin's registration and options. It
// supersedes the resource's session, if there is one. Devices stay as they are
// until the first list; where there were none, the resource is known without any,
// so that a pod that requests some is not admitted without them.
func (inv *Inventory) Registered(resource string, o Options, at time.Time) Session {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	inv.sessions++
	r, ok := inv.snapshot.Resource(resource)
	if !ok {
		r = &Resource{Name: resource}
	}
	next := *r
	next.State, next.Since, next.Options, next.session = Connected, at, o, inv.sessions
	next.Away = time.Time{}
	inv.put(next)
	return Session{resource, inv.sessions}
}

// Listed replaces the devices of a session's resource by a list in any order; of
// devices with the same id the last one counts. It returns false, and changes
// nothing, if the session is superseded or gone.
func (inv *Inventory) Listed(s Session, devices []Device, at time.Time) bool {
	return inv.change(s, at, func(r *Resource) {
		r.Devices, r.live = sorted(devices), true
	})
}

// Gone notes that a session's stream has ended. Its devices stay listed, none of
// them healthy, for the grace period. It returns false, and changes nothing, if
// the session is superseded or gone already.
func (inv *Inventory) Gone(s Session, at time.Time) bool {
	return inv.change(s, at, func(r *Resource) {
		r.State, r.Since, r.Away, r.live = Stopped, at, at, false
	})
}

// change applies an event of a session to a copy of its resource.
func (inv *Inventory) change(s Session, at time.Time, event func(*Resource)) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	r, ok := inv.snapshot.Resource(s.Resource)
	if !ok || r.State != Connected || r.session != s.number {
		return false
	}
	next := *r
	event(&next)
	next.history = next.history.noting(&next, at)
	inv.put(next)
	return true
}

// put makes a snapshot with r the present one. The lock is held.
func (inv *Inventory) put(r Resource) { inv.replace(inv.snapshot.with(r)) }

// replace makes a snapshot the present one. The lock is held.
func (inv *Inventory) replace(s *Snapshot) {
	old := inv.snapshot
	inv.snapshot = s
	close(old.superseded)
}

// Forget drops a resource, as if it had never had a plugin. It returns false, and
// changes nothing, if a plugin is connected or the resource is not known.
func (inv *Inventory) Forget(resource string) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	r, ok := inv.snapshot.Resource(resource)
	if !ok || r.State == Connected {
		return false
	}
	inv.replace(inv.snapshot.without(resource))
	return true
}

// Retire takes the capacity of a resource at once, and keeps its name for as long
// as the inventory lives. It returns false, and changes nothing, if a plugin is
// connected or the resource is not known.
func (inv *Inventory) Retire(resource string, at time.Time) bool {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	r, ok := inv.snapshot.Resource(resource)
	if !ok || r.State == Connected {
		return false
	}
	next := r.expired(at)
	next.Away = time.Time{}
	inv.put(next)
	return true
}

// Expire takes the capacity of resources whose plugin has been away for longer
// than Grace, and returns their names.
func (inv *Inventory) Expire(at time.Time) []string {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	var names []string
	for _, r := range inv.snapshot.resources {
		if r.waiting() && at.Sub(r.Since) > Grace {
			inv.put(r.expired(at))
			names = append(names, r.Name)
		}
	}
	return names
}

// expired returns the resource without its capacity.
func (r *Resource) expired(at time.Time) Resource {
	next := *r
	if next.State != Expired {
		next.State, next.Since, next.Devices = Expired, at, nil
		next.history = next.history.noting(&next, at)
	}
	return next
}

// waiting reports whether the grace period runs.
func (r *Resource) waiting() bool { return r.State == Stopped || r.State == Expected }

func compareID(d Device, id string) int { return cmp.Compare(d.ID, id) }

// sorted returns the devices by id, each once.
func sorted(devices []Device) []Device {
	out := slices.Clone(devices)
	slices.SortStableFunc(out, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	last := 0
	for i := range out {
		if i > 0 && out[i].ID != out[last].ID {
			last++
		}
		out[last] = out[i]
	}
	if len(out) > 0 {
		out = out[:last+1]
	}
	return out
}
