package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cpuset"
)

// Whatever the sources report, lose, repeat or report late: no process runs on the own CPUs
// of a container that was let start, and no start is blocked by a container with which it
// shares nothing, and in the end everybody may start.
func TestNoProcessRunsOnOwnCPUsOfOthers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(r *rapid.T) {
		n := &node{r: r, now: time.Unix(0, 0), boxes: map[string]*box{},
			drops: rapid.Bool().Draw(r, "drops updates of what it does not store")}
		for step := range rapid.IntRange(1, 60).Draw(r, "steps") {
			n.happen(fmt.Sprint("c", step))
			n.check()
			n.compare()
		}
		n.calm()
	})
}

// node is a ledger, a runtime, a kernel, and a tracker of them.
type node struct {
	Tracker
	r     *rapid.T
	now   time.Time
	boxes map[string]*box
	log   []string
	// drops is NRI: an update of a container that is not stored yet is answered, and lost.
	drops bool
	// old is a list from a moment ago, nil for none; partial is true if the last list was
	// not whole, so that the next one is.
	old     map[string]EventKind
	partial bool
}

// box is a container as it is.
type box struct {
	own      cpuset.Set // by the ledger; empty for one that shares
	told     bool       // its start was permitted
	at       time.Time
	stored   bool       // by the runtime
	spec     cpuset.Set // with which the runtime starts it
	starting bool       // the runtime has read the spec; its first process is there
	running  bool
	ended    bool
	on       cpuset.Set   // the kernel's set, while a process is there
	late     []cpuset.Set // writes that are carried out later
}

func (b *box) lives() bool { return b.starting || b.running }

// maxContainers is how many containers there are at a time: with few, more happens to each.
const maxContainers = 4

// owns are the sets that pods get for themselves.
var owns = []cpuset.Set{cpuset.Of(1), cpuset.Of(2, 3), cpuset.Of(3)}

func (n *node) note(format string, args ...any) { n.log = append(n.log, fmt.Sprintf(format, args...)) }

func (n *node) tell(kind EventKind, id string, cpus cpuset.Set) {
	e := n.Apply(Event{Kind: kind, Key: at(id), Name: id, CPUs: cpus, At: n.now})
	if e.Look {
		n.look(id)
	}
}

// look reads the kernel.
func (n *node) look(id string) {
	switch b := n.boxes[id]; {
	case b.lives():
		n.tell(KernelRuns, id, b.on)
	default:
		n.tell(KernelEmpty, id, cpuset.Set{})
	}
}

func (n *node) shared() cpuset.Set {
	shared := cpuset.Range(0, 3)
	for _, b := range n.boxes {
		shared = shared.Minus(b.own)
	}
	return shared
}

// wants is the ledger: CPUs without an owner are shared.
func (n *node) wants() {
	shared := n.shared()
	for id, b := range n.boxes {
		if b.own.IsEmpty() {
			n.Want(at(id), shared, cpuset.Set{})
		} else {
			n.Want(at(id), b.own, b.own)
		}
	}
}

func (n *node) those(is func(*box) bool) (ids []string) {
	for _, id := range slices.Sorted(maps.Keys(n.boxes)) {
		if is(n.boxes[id]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// one picks a container; empty if there is none.
func (n *node) one(is func(*box) bool) string {
	ids := n.those(is)
	if len(ids) == 0 {
		return ""
	}
	return rapid.SampledFrom(ids).Draw(n.r, "id")
}

func (n *node) happen(id string) {
	what := rapid.SampledFrom([]string{
		"come", "come", "own", "own", "start", "start", "start", "store", "store", "read", "read", "run", "run", "end", "list", "list",
		"take", "old",
		"look", "write", "write", "late", "wait", "again", "remove", "pause",
	}).Draw(n.r, "what")
	n.note("%s", what)
	switch what {
	case "come":
		if len(n.boxes) >= maxContainers {
			return
		}
		n.boxes[id] = &box{spec: cpuset.Range(0, 3)}
		n.tell(Plan, id, cpuset.Set{})
	case "own":
		if len(n.boxes) >= maxContainers {
			return
		}
		own := rapid.SampledFrom(owns).Draw(n.r, "own")
		if len(n.those(func(b *box) bool { return b.own.Overlaps(own) })) == 0 {
			n.boxes[id] = &box{own: own, spec: cpuset.Range(0, 3)}
			n.tell(Plan, id, cpuset.Set{})
		}
	case "start":
		if id := n.one(func(b *box) bool { return !b.ended && !b.running }); id != "" {
			n.wants()
			n.start(id)
		}
	case "store":
		if id := n.one(func(b *box) bool { return !b.stored && !b.ended }); id != "" {
			n.boxes[id].stored = true
		}
	case "read":
		if id := n.one(n.readable); id != "" {
			b := n.boxes[id]
			b.starting, b.on = true, b.spec
			n.note("%s starts on %s", id, b.on)
		}
	case "run":
		if id := n.one(func(b *box) bool { return b.starting }); id != "" {
			n.run(id)
			if rapid.Bool().Draw(n.r, "told") {
				n.tell(ShownRunning, id, cpuset.Set{})
			}
		}
	case "end":
		if id := n.one((*box).lives); id != "" {
			n.end(id)
			if rapid.Bool().Draw(n.r, "told") {
				n.tell(Ended, id, cpuset.Set{})
			}
		}
	case "remove":
		if id := n.one(func(*box) bool { return true }); id != "" {
			n.remove(id)
		}
	case "list":
		n.show(n.list(), true)
	case "take":
		n.old = n.list()
	case "old":
		// Containers may have come since, and none of them is lacking in the next one.
		if n.old != nil && !n.partial {
			n.show(n.old, false)
			n.old, n.partial = nil, true
		}
	case "look":
		if id := n.one((*box).lives); id != "" {
			n.look(id)
		}
	case "write":
		n.writes(false)
	case "late":
		for _, b := range n.boxes {
			n.arrive(b)
		}
	case "wait":
		n.wait(rapid.SampledFrom([]time.Duration{StartTime / 2, StartTime}).Draw(n.r, "for"))
	case "again":
		n.again()
	case "pause":
		if id := n.one(func(b *box) bool { return b.running }); id != "" {
			n.tell(ShownPaused, id, cpuset.Set{})
		}
	}
	n.wants()
}

// readable reports whether the runtime may begin a start.
func (n *node) readable(b *box) bool { return b.stored && b.told && !b.lives() && !b.ended }

func (n *node) run(id string) {
	b := n.boxes[id]
	b.starting, b.running = false, true
	n.note("%s runs on %s", id, b.on)
}

func (n *node) end(id string) {
	b := n.boxes[id]
	b.starting, b.running, b.ended, b.late = false, false, true, nil
	n.note("%s ends", id)
}

// remove ends a container and takes it out of the ledger.
func (n *node) remove(id string) {
	n.tell(Stop, id, cpuset.Set{})
	if rapid.IntRange(0, 3).Draw(n.r, "fails") == 0 {
		n.tell(Withdraw, id, cpuset.Set{})
		return
	}
	n.end(id)
	n.Forget(at(id))
	delete(n.boxes, id)
}

// start is PreStartContainer or CreateContainer.
func (n *node) start(id string) {
	b := n.boxes[id]
	n.tell(Plan, id, cpuset.Set{})
	c, _ := n.Get(at(id))
	if !n.send(id, c.WantedCPUs, false) {
		return
	}
	blockers := n.Block(at(id), n.now)
	for _, o := range blockers {
		if c, _ := n.Get(at(o.ID)); !o.CPUs.IsSubsetOf(b.own) || !c.Anywhere && !o.CPUs.IsSubsetOf(c.PossibleCPUs) {
			n.r.Fatalf("%s is blocked by %v, with which it shares nothing:\n%s", id, o, strings.Join(n.log, "\n"))
		}
	}
	n.note("%s is blocked by %v", id, blockers)
	if len(blockers) == 0 {
		n.tell(Allow, id, cpuset.Set{})
		b.told, b.at = true, n.now
		if n.drops {
			b.spec = c.WantedCPUs // the answer itself is the spec
		}
	}
}

// send writes a set; lost answers come with the write carried out now, later or never.
func (n *node) send(id string, cpus cpuset.Set, sure bool) bool {
	b := n.boxes[id]
	n.tell(Sent, id, cpus)
	how := "ok"
	if !sure {
		how = rapid.SampledFrom([]string{"ok", "ok", "ok", "lost", "late", "never", "refused"}).Draw(n.r, "answer")
	}
	n.note("write %s of %s: %s", cpus, id, how)
	switch how {
	case "ok":
		n.arrive(b)
		b.take(cpus, n.drops)
		n.tell(Confirmed, id, cpus)
		return true
	case "lost":
		n.arrive(b)
		b.take(cpus, n.drops)
	case "late":
		b.late = append(b.late, cpus)
	case "refused":
		n.tell(Refused, id, cpus)
		return false
	}
	return false
}

// arrive carries out what is late, in order.
func (n *node) arrive(b *box) {
	for _, cpus := range b.late {
		b.take(cpus, n.drops)
	}
	b.late = nil
}

// take is an update at the runtime.
func (b *box) take(cpus cpuset.Set, drops bool) {
	switch {
	case b.ended || drops && !b.stored:
	case b.running:
		b.spec, b.on = cpus, cpus
	default:
		b.spec = cpus
	}
}

// writes carries out the tracker's writes.
func (n *node) writes(sure bool) {
	for _, w := range n.Tracker.Writes(n.shared()) {
		n.send(w.ID, w.CPUs, sure)
	}
}

// list is the runtime's, as it is now.
func (n *node) list() map[string]EventKind {
	out := map[string]EventKind{}
	for id, b := range n.boxes {
		switch {
		case !b.stored:
		case b.ended:
			out[id] = Ended
		case b.running:
			out[id] = ShownRunning
		default:
			out[id] = ShownCreated
		}
	}
	return out
}

// show feeds a list. A fresh one may lack a container, unless the last one did.
func (n *node) show(list map[string]EventKind, fresh bool) {
	lacks := ""
	if fresh && !n.partial && rapid.IntRange(0, 3).Draw(n.r, "lacks") == 0 {
		lacks = n.one(func(*box) bool { return true })
	}
	if fresh {
		n.partial = lacks != ""
	}
	for _, id := range slices.Sorted(maps.Keys(n.boxes)) {
		kind, ok := list[id]
		if !ok || id == lacks {
			kind = Unlisted
		}
		n.note("list: %s %s", id, kind)
		n.tell(kind, id, cpuset.Set{})
	}
}

// wait lets time pass. A start does not take longer than it may.
func (n *node) wait(d time.Duration) {
	n.now = n.now.Add(d)
	for _, id := range n.those(func(b *box) bool { return b.starting && n.now.Sub(b.at) >= StartTime }) {
		n.run(id)
	}
	for _, id := range n.those(func(b *box) bool { return b.told && !b.lives() && n.now.Sub(b.at) >= StartTime }) {
		n.boxes[id].told = false // the caller that started it has cancelled
	}
	for _, key := range n.Overdue(n.now) {
		n.tell(StartOverdue, key.ID, cpuset.Set{})
	}
}

// again is another tracker in place of this one, with the ledger.
func (n *node) again() {
	n.Tracker, n.old = Tracker{}, nil
	for id, b := range n.boxes {
		if b.stored = b.stored || b.told; b.stored { // an id that is bound is the runtime's
			n.tell(Restore, id, cpuset.Set{})
		} else {
			n.tell(Plan, id, cpuset.Set{})
		}
	}
	n.wants()
}

// check looks for a process on the own CPUs of a container that was let start.
func (n *node) check() {
	for id, b := range n.boxes {
		if b.own.IsEmpty() || !b.told && !b.lives() {
			continue
		}
		for other, o := range n.boxes {
			if o != b && o.lives() && o.on.Overlaps(b.own) {
				n.r.Fatalf("%s runs on %s, and %s was let start on %s:\n%s", other, o.on, id, b.own, strings.Join(n.log, "\n"))
			}
		}
	}
}

// compare compares the result by groups of containers with the result by all containers.
func (n *node) compare() {
	for _, c := range n.containers {
		id := c.ID
		var blockers, intrusions []string
		for _, o := range n.containers {
			if !o.intrudes(c).IsEmpty() {
				blockers = append(blockers, o.ID)
			}
			if o.Phase != Planned && o.Phase != Exited && !c.intrudes(o).IsEmpty() {
				intrusions = append(intrusions, o.ID)
			}
		}
		for what, of := range map[string]struct {
			want []string
			got  []Blocker
		}{"blockers": {blockers, n.Blockers(at(id))}, "intrusions": {intrusions, n.Intrusions(at(id))}} {
			var got []string
			for _, b := range of.got {
				got = append(got, b.ID)
			}
			slices.Sort(of.want)
			if !slices.Equal(got, of.want) {
				n.r.Fatalf("%s of %s are %q, want %q:\n%s", what, id, got, of.want, strings.Join(n.log, "\n"))
			}
		}
	}
}

// calm comes after all that: everything is reported, and every container may start.
func (n *node) calm() {
	n.wait(StartTime)
	for range 3 {
		for _, b := range n.boxes {
			n.arrive(b)
		}
		n.partial = true // the next list is whole
		n.show(n.list(), true)
		n.wait(StartTime)
		for _, id := range n.those((*box).lives) {
			n.look(id)
		}
		n.wants()
		n.writes(true)
	}
	for _, id := range n.those(func(b *box) bool { return !b.ended && !b.lives() }) {
		if got := n.Blockers(at(id)); len(got) > 0 {
			n.r.Fatalf("%s is blocked by %v:\n%s", id, got, strings.Join(n.log, "\n"))
		}
	}
	if left := n.Tracker.Writes(n.shared()); len(left) > 0 {
		n.r.Fatalf("left to write: %v\n%s", left, strings.Join(n.log, "\n"))
	}
}
