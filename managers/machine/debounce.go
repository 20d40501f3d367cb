package machine

import (
	"slices"
	"time"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// Debounce decides what of an observed machine is used. What is gone counts at once, because
// containers may run in the wrong place. So do huge pages that are new, because they take memory away. Each
// CPU, node and amount of memory that is new counts after it has stayed for a while, so that one that comes and
// goes neither causes a change each time nor keeps the others away.
type Debounce struct {
	// For is how long something new must be observed.
	For time.Duration

	waiting map[addition]arrival
}

// addition is something that an observed machine has in addition to the one in use.
type addition struct {
	kind additionKind
	// id of the CPU or node.
	id int
}

type additionKind uint8

const (
	newCPU additionKind = iota
	newNode
	newMemory
	// newPlaces stands for all CPUs in another place, and for what is only displayed.
	newPlaces
)

// arrival is since when an addition has been observed without interruption, and the least amount
// of it.
type arrival struct {
	since time.Time
	least uint64
}

// Observe returns the machine that replaces the one in use; nil if none does. again is when to
// observe once more, because something new may count then; zero if nothing waits.
func (d *Debounce) Observe(used, observed *Topology, now time.Time) (next *Topology, again time.Time) {
	change := Compare(used, observed)
	r := round{Debounce: d, now: now, waiting: map[addition]arrival{}}
	next = r.without(used, observed, change)
	switch rest := Compare(used, next); {
	case rest.Empty():
		next = nil
	case rest.Loses(), !rest.CPUsCome.IsEmpty(), !rest.NodesCome.IsEmpty(), len(rest.Memory) > 0:
	default:
		if _, stays := r.stays(addition{kind: newPlaces}, 0, 0); !stays {
			next = nil
		}
	}
	d.waiting = r.waiting
	return next, r.again
}

// round is one observation.
type round struct {
	*Debounce
	now     time.Time
	again   time.Time
	waiting map[addition]arrival
}

// stays returns whether something new has stayed long enough, and the amount of memory that has, if it has. An
// amount of at most used is not new.
func (r *round) stays(a addition, used, observed uint64) (least uint64, ok bool) {
	w, known := r.Debounce.waiting[a]
	if !known || a.kind == newMemory && w.least <= used || w.since.After(r.now) { // the clock was set back
		w = arrival{r.now, observed}
	}
	w.least = min(w.least, observed)
	return w.least, !r.waits(a, w)
}

// arrives begins the wait for something new.
func (r *round) arrives(a addition, least uint64) { r.waits(a, arrival{r.now, least}) }

// waits notes an arrival, and returns whether it has not stayed long enough.
func (r *round) waits(a addition, w arrival) bool {
	r.waiting[a] = w
	due := w.since.Add(r.For)
	early := r.now.Before(due)
	if early && (r.again.IsZero() || due.Before(r.again)) {
		r.again = due
	}
	return early
}

// without returns the observed machine without what is new and has not stayed long enough. If no
// CPU would be left, it is the whole machine.
func (r *round) without(used, observed *Topology, change Change) *Topology {
	s := observed.Snapshot()
	early := r.earlyNodes(used, observed, change)
	off := r.earlyCPUs(change).Union(observed.CPUsInNodes(early))
	less := !off.IsEmpty() || !early.IsEmpty()
	for _, a := range change.Memory {
		if a.After <= a.Before || a.PageKiB != 0 || change.NodesCome.Contains(a.Node) {
			continue
		}
		is := addition{newMemory, a.Node}
		amount, stays := r.stays(is, a.Before+memoryGrain-1, a.After)
		switch {
		case !stays:
			amount = a.Before
		case amount < a.After: // the rest came later
			r.arrives(is, a.After)
		}
		if amount != a.After {
			s.reduce(a, amount)
			less = true
		}
	}
	if !less {
		return observed
	}
	s.takeOffline(off)
	s.removeNodes(early)
	m, err := observed.reduced(s)
	if err != nil { // no CPU in use is left
		r.again = time.Time{}
		return observed
	}
	return m
}

// earlyCPUs returns the CPUs that have not stayed long enough.
func (r *round) earlyCPUs(change Change) cpuset.Set {
	var early cpuset.Builder
	for id := range change.CPUsCome.All() {
		if _, stays := r.stays(addition{kind: newCPU, id: id}, 0, 0); !stays {
			early.Add(id)
		}
	}
	return early.Set()
}

// earlyNodes returns the nodes that have not stayed long enough. A node with a CPU in use is not
// one of them.
func (r *round) earlyNodes(used, observed *Topology, change Change) (early numa.Mask) {
	for id := range change.NodesCome.All() {
		if _, stays := r.stays(addition{kind: newNode, id: id}, 0, 0); !stays && !observed.CPUsInNode(id).Overlaps(used.cpus) {
			early = early.With(id)
		}
	}
	return early
}

// reduce reduces the memory of a node.
func (s *Snapshot) reduce(a AmountChange, to uint64) {
	i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.ID == a.Node })
	s.Nodes[i].MemoryBytes = to
	s.MemoryBytes -= min(s.MemoryBytes, a.After-to)
}

// removeNodes removes nodes whose CPUs are offline.
func (s *Snapshot) removeNodes(gone numa.Mask) {
	if gone.IsEmpty() {
		return
	}
	s.Nodes = slices.DeleteFunc(s.Nodes, func(n Node) bool {
		if gone.Contains(n.ID) {
			s.MemoryBytes -= min(s.MemoryBytes, n.MemoryBytes)
		}
		return gone.Contains(n.ID)
	})
	s.Distances = s.Distances.Among(s.Distances.Nodes().Minus(gone))
}
