// Package placementtest has a kernel for tests of ledgers: the containers of a ledger run in it where a tracker puts them.
//
// Words:
//
//   - clash: a container runs on a CPU that another one has exclusively and is on.
//
// Invariants: a write of the tracker makes no clash. There is one only if a container gets a CPU of its own that it has shared
// before, or has lost its last CPU, so that the kernel lets it run anywhere. It ends while the tracker writes.
//
// Other modules may import this package, and every release may change it.
package placementtest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
)

// Kernel has running containers. The zero value has none.
type Kernel struct {
	tracker placement.Tracker
	// on are the CPUs of each container.
	on map[string]cpuset.Set
	// writes counts the writes.
	writes int
	// clashes are those that have not ended.
	clashes map[clash]bool
}

// clash is one of a container on a CPU of another one.
type clash struct {
	container, owner string
	cpu              int
}

// String describes the clash.
func (c clash) String() string {
	return fmt.Sprintf("container %s runs on CPU %d, which container %s has exclusively", c.container, c.cpu, c.owner)
}

// passes is more than a tracker needs until each container is where the ledger has it.
const passes = 100

// Follow carries out a view: containers of pods that left end, those of new pods start, and the others move. The invariants
// are checked after each write, and at the end each container is where the ledger has it.
func (k *Kernel) Follow(t ledgertest.T, view *ledger.View) {
	t.Helper()
	if k.on == nil {
		k.on = map[string]cpuset.Set{}
	}
	owners := map[string]ledger.Owner{}
	for p := range view.Pods() {
		for _, c := range p.Pod.Containers {
			o := ledger.Owner{Pod: p.UID(), Container: c.Name}
			owners[o.String()] = o
		}
	}
	for _, id := range slices.Sorted(maps.Keys(k.on)) {
		if _, ok := owners[id]; !ok {
			k.tracker.Forget(placement.Key{ID: id})
			delete(k.on, id)
		}
	}
	k.takeOffline(view.Machine().CPUs())
	ids := slices.Sorted(maps.Keys(owners))
	for _, id := range ids {
		if _, runs := k.on[id]; !runs {
			k.apply(placement.Plan, id, cpuset.Set{})
		}
		k.tracker.Want(placement.Key{ID: id}, view.RunsOn(owners[id]), view.OwnCPUs(owners[id]))
	}
	k.clashes = k.all()
	k.write(t)
	for _, id := range ids {
		if _, runs := k.on[id]; !runs {
			k.start(t, id)
		}
	}
	for c := range k.tracker.All() {
		if c.PossibleCPUs != c.WantedCPUs || k.on[c.ID] != c.WantedCPUs {
			t.Fatalf("container %s runs on %s, possibly on %s, and has %s", c.ID, k.on[c.ID], c.PossibleCPUs, c.WantedCPUs)
		}
		if others := k.tracker.Intrusions(c.Key); len(others) > 0 {
			t.Fatalf("container %s is on CPUs of %v", c.ID, others)
		}
	}
}

// takeOffline removes containers from CPUs that are not online. One without any other runs anywhere.
func (k *Kernel) takeOffline(online cpuset.Set) {
	for _, id := range slices.Sorted(maps.Keys(k.on)) {
		on := k.on[id].Intersect(online)
		if on == k.on[id] {
			continue
		}
		if on.IsEmpty() {
			on = online
		}
		k.on[id] = on
		k.apply(placement.KernelRuns, id, on)
	}
}

// refused is how many writes come from one that the kernel refuses to the next. The others go on meanwhile.
const refused = 3

// write carries out the writes of the tracker.
func (k *Kernel) write(t ledgertest.T) {
	t.Helper()
	for range passes {
		writes := k.tracker.Writes(cpuset.Set{})
		if len(writes) == 0 {
			return
		}
		for _, w := range writes {
			k.apply(placement.Sent, w.ID, w.CPUs)
			if k.writes++; k.writes%refused == 0 {
				k.apply(placement.Refused, w.ID, w.CPUs)
				continue
			}
			k.apply(placement.Confirmed, w.ID, w.CPUs)
			k.on[w.ID] = w.CPUs
			k.check(t)
		}
	}
	t.Fatalf("the tracker still writes after %d passes", passes)
}

// start starts a container. The others have left its CPUs.
func (k *Kernel) start(t ledgertest.T, id string) {
	t.Helper()
	c, _ := k.tracker.Get(placement.Key{ID: id})
	k.apply(placement.Sent, id, c.WantedCPUs)
	k.apply(placement.Confirmed, id, c.WantedCPUs)
	if blockers := k.tracker.Blockers(placement.Key{ID: id}); len(blockers) > 0 {
		t.Fatalf("the start of container %s is blocked by %v", id, blockers)
	}
	for _, kind := range []placement.EventKind{placement.Allow, placement.ShownRunning, placement.KernelRuns} {
		k.apply(kind, id, c.WantedCPUs)
	}
	k.on[id] = c.WantedCPUs
	k.check(t)
}

func (k *Kernel) apply(kind placement.EventKind, id string, cpus cpuset.Set) {
	k.tracker.Apply(placement.Event{Kind: kind, Key: placement.Key{ID: id}, Name: id, CPUs: cpus, At: time.Unix(1, 0)})
}

// check finds clashes that were not there before.
func (k *Kernel) check(t ledgertest.T) {
	t.Helper()
	now := k.all()
	for c := range now {
		if !k.clashes[c] {
			t.Fatalf("%s", c)
		}
	}
	k.clashes = now
}

// all returns the clashes that there are.
func (k *Kernel) all() map[clash]bool {
	out := map[clash]bool{}
	for owner, on := range k.on {
		c, _ := k.tracker.Get(placement.Key{ID: owner})
		own := on.Intersect(c.OwnCPUs)
		if own.IsEmpty() {
			continue
		}
		for id, others := range k.on {
			o, _ := k.tracker.Get(placement.Key{ID: id})
			for cpu := range others.Intersect(own).Minus(o.WantedCPUs).All() {
				out[clash{id, owner, cpu}] = true
			}
		}
	}
	return out
}
