package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/runtime"
)

// Whatever a runtime and those who use it do, as long as they start what they were
// told to: no other container runs on the CPUs of one that was let start on them, and
// no start waits forever.
func TestNobodyRunsOnCPUsOfOthers(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) {
				h := newSimulation(t, r, facts)
				for step := range rapid.IntRange(1, 40).Draw(r, "steps") {
					h.happen(fmt.Sprint("c", step))
					h.check()
				}
				h.calm()
			})
		})
	}
}

// simulation is a fake runtime at which anything may happen.
type simulation struct {
	*bench
	fake  *fakeRuntime
	r     *rapid.T
	boxes map[string]*simulated
	// sandboxes are the cgroups of those that run, by the uid of the pod.
	sandboxes map[string]string
	// alone are the present own CPUs of the pods that have some.
	alone map[string]string
	log   []string
	// calmed is true once nothing comes in between any more.
	calmed bool
}

// simulated is what else there is to know of a container.
type simulated struct {
	pod string
	// told is true once PreStart was answered, and has the time.
	told bool
	at   time.Time
	// read is what a start that is under way has read; nil if none is.
	read *cgroup.Values
	// found containers run without PreStart, and may be anywhere until the next
	// success of anything.
	found bool
}

// alone are the pods with CPUs of their own; all others share the rest.
var alone = map[string]string{"own": "2-3", "one": "1"}

func newSimulation(t *testing.T, r *rapid.T, facts cgroup.Facts) *simulation {
	b, d := newFakeRuntime(t, facts)
	b.set("/elsewhere", cgroup.Values{})
	d.hidden, d.closed = map[string]bool{}, map[string]bool{}
	h := &simulation{bench: b, fake: d, r: r, boxes: map[string]*simulated{}, sandboxes: map[string]string{}, alone: maps.Clone(alone)}
	h.must(b.RemovePod(t.Context(), b.ledger.View(), "a"))
	b.update(func(d *ledger.Draft) { d.RemovePod("a") })
	h.come("a")
	return h
}

// pick takes one of some.
func pick[T any](r *rapid.T, label string, some []T) (one T, ok bool) {
	if len(some) == 0 {
		return one, false
	}
	return rapid.SampledFrom(some).Draw(r, label), true
}

// those lists containers in a phase.
func (h *simulation) those(phase runtime.Phase, more func(*simulated) bool) (out []string) {
	for _, id := range slices.Sorted(maps.Keys(h.boxes)) {
		if h.fake.boxes[id].Phase == phase && more(h.boxes[id]) {
			out = append(out, id)
		}
	}
	return out
}

func (h *simulation) happen(id string) {
	ctx := h.t.Context()
	what := rapid.SampledFrom([]string{
		"pod", "pod", "create", "create", "prestart", "prestart", "start", "begin", "begin", "finish", "end", "find", "sandbox",
		"sandbox", "count", "again", "lose", "show",
		"follow", "pass", "away", "late", "late", "wait", "resize", "grow",
	}).Draw(h.r, "what")
	note := func(format string, args ...any) { h.note(what+" "+format, args...) }
	view := h.ledger.View()
	switch what {
	case "pod":
		h.comeOrGo("")
	case "create":
		var uids []string
		for p := range view.Pods() {
			uids = append(uids, p.UID())
		}
		if uid, ok := pick(h.r, "uid", uids); ok {
			place := cgroup.ContainerCpuset(view, ledger.Owner{Pod: uid, Container: "c"})
			h.makeIn(uid, id, place.CPUs.String())
			h.boxes[id] = &simulated{pod: uid}
			if rapid.IntRange(0, 3).Draw(h.r, "where") == 0 {
				h.fake.boxes[id].Cgroup = name("/elsewhere/" + id)
			}
			note("%s of %s on %s", id, uid, place.CPUs)
			if rapid.Bool().Draw(h.r, "started") {
				err := h.tryStart(id)
				note("%s is started: %v", id, err)
				switch now := rapid.IntRange(0, 2).Draw(h.r, "now"); {
				case err == nil && now == 1:
					h.begin(id)
				case err == nil && now == 2:
					h.fake.start(h.t, id)
				}
			}
		}
	case "prestart":
		// An answered PreStart may be repeated, as after a start that took too long: that
		// one may still be under way.
		if id, ok := pick(h.r, "id", h.those(runtime.Created, func(*simulated) bool { return true })); ok {
			note("%s: %v", id, h.tryStart(id))
		}
	case "start":
		if id, ok := pick(h.r, "id", h.those(runtime.Created, func(s *simulated) bool { return s.told && s.read == nil })); ok {
			h.fake.start(h.t, id)
			note("%s on %s", id, h.fake.boxes[id].values.CPUs)
		}
	case "begin":
		if id, ok := pick(h.r, "id", h.those(runtime.Created, func(s *simulated) bool {
			return s.told && s.read == nil && h.clock().Sub(s.at) < placement.StartTime
		})); ok {
			h.begin(id)
		}
	case "finish":
		if id, ok := pick(h.r, "id", h.those(runtime.Created, func(s *simulated) bool { return s.read != nil })); ok {
			h.finish(id)
			note("%s", id)
		}
	case "end":
		if id, ok := pick(h.r, "id", h.those(runtime.Running, func(*simulated) bool { return true })); ok {
			h.end(id)
			if rapid.Bool().Draw(h.r, "told") {
				h.update(func(d *ledger.Draft) { d.Unbind(id) })
			}
			note("%s", id)
		}
	case "find":
		// It was created without berth.
		if _, here := view.Pod("a"); here && h.runsAnywhere("a") {
			h.makeIn("a", id, "0-3")
			h.fake.start(h.t, id)
			h.boxes[id] = &simulated{pod: "a", found: true}
			h.bind(id, h.boxes[id].pod)
			note("%s", id)
		}
	case "sandbox":
		// Its process begins on the CPUs of the pod's cgroup, before the pod has containers, or
		// in place of another one when they have ended. The loop follows an end at once.
		for p := range view.Pods() {
			uid, again := p.UID(), false
			_, opens := h.Loop.sandboxes.opening.pods[uid]
			for id, s := range h.boxes {
				opens = opens && (s.pod != uid || h.fake.boxes[id].Phase == runtime.Exited)
				again = again || s.pod == uid
			}
			if opens && again {
				if err := h.Follow(ctx); err != nil {
					note("%s: %v", uid, err)
					continue
				}
				h.cleared()
				if path := h.sandboxes[uid]; path != "" && rapid.Bool().Draw(h.r, "ends") {
					h.must(h.tree.Remove(ctx, name(path)))
					delete(h.sandboxes, uid)
				}
			}
			if opens && h.sandboxes[uid] == "" && rapid.Bool().Draw(h.r, "begins") {
				path := "/kubepods/pod" + uid + "/" + uid + "-sandbox"
				h.set(path, cgroup.Values{})
				h.must(h.tree.Move(h.t.Context(), name(path), h.tree.Spawn(memtree.Mortal)))
				h.sandboxes[uid] = path
				h.fake.set(func() { h.fake.closed[uid] = rapid.Bool().Draw(h.r, "unlisted") })
				note("%s on %s", uid, h.kernel.allowed(h.seen(path)))
			}
		}
	case "count":
		// A count finds one without a PreStart.
		if id, ok := pick(h.r, "id", h.those(runtime.Created, func(s *simulated) bool { return !s.told })); ok {
			if _, here := view.Pod(h.boxes[id].pod); here {
				h.bind(id, h.boxes[id].pod)
				note("%s", id)
			}
		}
	case "lose":
		// The runtime has lost its records of one that runs.
		if id, ok := pick(h.r, "id", h.those(runtime.Running, func(*simulated) bool { return true })); ok {
			err := h.Follow(ctx) // what berth has never seen it cannot look for
			if err == nil {
				h.cleared()
			}
			h.fake.hidden[id] = true
			note("%s %v", id, err)
		}
	case "show":
		clear(h.fake.hidden)
		note("")
	case "again":
		// Another berthd in place of this one, which finds lost ones in their pods only.
		maps.DeleteFunc(h.fake.hidden, func(id string, _ bool) bool { return h.fake.boxes[id].Cgroup.Within(name("/elsewhere")) })
		h.Loop = New(h.Config)
		if rapid.Bool().Draw(h.r, "away") {
			h.fake.fail = errdefs.Unavailablef("nobody there")
		}
		err := h.Pass(ctx) // before any call
		h.fake.fail = nil
		note("%v", err)
	case "follow", "pass", "away", "late":
		switch what {
		case "away":
			h.fake.fail = errdefs.Unavailablef("nobody there")
		case "late":
			h.fake.late = errdefs.Deadlinef("too late")
		}
		step := h.Follow
		if what == "pass" {
			step = h.Pass
		}
		err := step(ctx)
		h.fake.fail, h.fake.late = nil, nil
		if err == nil {
			h.cleared()
		}
		note("%v", err)
	case "wait":
		// A start that is under way shows up before it is not young any more.
		for _, id := range h.those(runtime.Created, func(s *simulated) bool { return s.read != nil }) {
			h.finish(id)
		}
		h.wait(rapid.SampledFrom([]time.Duration{placement.StartTime / 2, placement.StartTime}).Draw(h.r, "for"))
		note("")
	case "grow":
		// Or it gets fewer CPUs of its own. It gets them back only after it has left them: what
		// it is on, others do not leave.
		if _, here := view.Pod("own"); here {
			h.alone["own"] = "3"
			if rapid.Bool().Draw(h.r, "more") && !h.mayRunOn("own", cpuset.Of(2)) {
				h.alone["own"] = "2-3"
			}
			h.update(func(d *ledger.Draft) { d.PutPod(exclusivePod("own", h.alone["own"])) })
			note("own has %s", h.alone["own"])
		}
	case "resize":
		uid := rapid.SampledFrom([]string{"a", "b"}).Draw(h.r, "uid")
		if _, here := view.Pod(uid); here {
			note("%s: %v", uid, h.Resize(ctx, view, uid))
		}
	}
}

// makeIn creates a container. The sandbox of its pod is ready before that.
func (h *simulation) makeIn(uid, id, cpus string) {
	h.fake.set(func() { delete(h.fake.closed, uid) })
	h.fake.create(id, uid, cpus)
}

// mayRunOn records that a container of a pod has CPUs, or will have begun with them.
func (h *simulation) mayRunOn(uid string, cpus cpuset.Set) bool {
	for id, s := range h.boxes {
		b := h.fake.boxes[id]
		if s.pod != uid || b.Phase == runtime.Exited {
			continue
		}
		on := b.values.CPUs
		if s.read != nil {
			on = on.Union(s.read.CPUs)
		}
		if b.Phase == runtime.Running {
			on = on.Union(h.seen(b.Cgroup.String()).Values.CPUs)
		}
		if on.Overlaps(cpus) {
			return true
		}
	}
	return false
}

// comeOrGo admits or removes a pod, but not a given one.
func (h *simulation) comeOrGo(not string) {
	uid := rapid.SampledFrom([]string{"a", "b", "own", "one"}).Draw(h.r, "uid")
	switch _, here := h.ledger.View().Pod(uid); {
	case uid == not:
	case here:
		h.note("pod - %s %v", uid, h.remove(uid))
	default:
		h.note("pod + %s", uid)
		h.come(uid)
	}
}

func (h *simulation) come(uid string) {
	p := ledgertest.Pod(uid, "c")
	if list, own := h.alone[uid]; own {
		p = ledgertest.With(p, ledgertest.Exclusive("c", list))
	} else {
		p.QoS, p.Pod.QoS = workload.Guaranteed, workload.Guaranteed
		p.Pod.Containers[0].Requests, p.Pod.Containers[0].Limits = cpus(100), cpus(100)
	}
	d := ledger.NewDraft(h.ledger.View())
	d.PutPod(p)
	_, _, err := h.EnsurePod(h.t.Context(), d.View(), uid)
	h.must(err)
	h.update(func(d *ledger.Draft) { d.PutPod(p) })
}

func (h *simulation) remove(uid string) error {
	switch how := rapid.SampledFrom([]string{"", "", "", "away", "failed"}).Draw(h.r, "how"); how {
	case "away", "failed":
		// The runtime has shown where containers are, and then goes away; a removal that
		// could not be carried out comes before that, and a look during it.
		look := func() { h.note("remove %s, %s: %v", uid, how, h.Follow(h.t.Context())) }
		if look(); how == "failed" {
			h.removing = func() error { look(); return errRefused }
			if err := h.RemovePod(h.t.Context(), h.ledger.View(), uid); !errors.Is(err, errRefused) {
				h.r.Fatalf("pod %s could not be removed: %v", uid, err)
			}
			h.removing = nil
		}
		h.fake.fail = errdefs.Unavailablef("nobody there")
		defer func() { h.fake.fail = nil }()
	}
	if err := h.RemovePod(h.t.Context(), h.ledger.View(), uid); err != nil {
		return err
	}
	for id, s := range h.boxes {
		if s.pod == uid {
			if pids, err := h.tree.Procs(h.t.Context(), h.fake.boxes[id].Cgroup); err != nil || len(pids) > 0 {
				h.r.Fatalf("pod %s is removed, and its container %s runs (%v):\n%s", uid, id, err, errors.Join(lines(h.log)...))
			}
			h.end(id)
		}
	}
	delete(h.sandboxes, uid)
	h.fake.set(func() { delete(h.fake.closed, uid) })
	h.update(func(d *ledger.Draft) { d.RemovePod(uid) })
	return nil
}

// runsAnywhere records that a container of a pod may start with all CPUs, which v1 refuses before
// the first start that berth knows of.
func (h *simulation) runsAnywhere(uid string) bool {
	return !h.kernel.v1() || cpuset.Range(0, 3).IsSubsetOf(h.seen("/kubepods/pod"+uid).Values.CPUs)
}

func (h *simulation) end(id string) {
	b := h.fake.boxes[id]
	b.Phase = runtime.Exited
	h.boxes[id].told, h.boxes[id].read = false, nil
	h.must(h.tree.Remove(h.t.Context(), b.Cgroup))
}

func (h *simulation) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// begin has the runtime read what a container is to start with.
func (h *simulation) begin(id string) {
	v := h.fake.boxes[id].values
	h.boxes[id].read = &v
	h.note("begin %s on %s", id, v.CPUs)
}

func (h *simulation) finish(id string) {
	s := h.boxes[id]
	h.fake.mu.Lock()
	defer h.fake.mu.Unlock()
	h.must(h.fake.run(h.t.Context(), id, *s.read))
	s.read = nil
}

// tryStart is what the engine does, without waiting for others. Another pod may come or
// go before the container is bound.
func (h *simulation) tryStart(id string) error {
	s := h.boxes[id]
	view := h.ledger.View()
	_, bound := view.Binding(id)
	start := admission.Start{Binding: box(id, s.pod), Again: bound}
	if err := h.tryToStart(view, start); err != nil {
		return err
	}
	if !h.calmed && rapid.IntRange(0, 3).Draw(h.r, "meanwhile") == 0 {
		h.comeOrGo(s.pod)
	}
	overtaken := h.ledger.View().Generation() != view.Generation()
	h.bind(id, s.pod)
	if overtaken {
		start.Still = true
		if err := h.tryToStart(h.ledger.View(), start); err != nil {
			return err
		}
	}
	if _, own := alone[s.pod]; own {
		h.cleared()
	}
	s.told, s.at = true, h.clock()
	return nil
}

// cleared records that all found containers were processed.
func (h *simulation) cleared() {
	for _, s := range h.boxes {
		s.found = false
	}
}

// check looks for another container on the CPUs of one that was let start.
func (h *simulation) check() {
	for own, s := range h.boxes {
		list, isOwn := h.alone[s.pod]
		if !isOwn || !s.told {
			continue
		}
		set, err := cpuset.Parse(list)
		h.must(err)
		// What it got since its start was allowed it has when it is sent, or is read by a start.
		has := h.fake.boxes[own].values.CPUs
		if s.read != nil {
			has = has.Union(s.read.CPUs)
		}
		set = set.Intersect(has)
		for uid, path := range h.sandboxes {
			if on := h.kernel.allowed(h.seen(path)); uid != s.pod && on.Overlaps(set) {
				h.r.Fatalf("the sandbox of %s is on %s, and %s of %s was let start on %s:\n%s", uid, on, own, s.pod, list,
					errors.Join(lines(h.log)...))
			}
		}
		for _, id := range h.those(runtime.Running, func(o *simulated) bool { return o.pod != s.pod && !o.found }) {
			if on := h.seen(h.fake.boxes[id].Cgroup.String()).Values.CPUs; on.Overlaps(set) {
				h.r.Fatalf("%s of %s runs on %s, and %s of %s was let start on %s:\n%s", id, h.boxes[id].pod, on, own, s.pod, list,
					errors.Join(lines(h.log)...))
			}
		}
	}
}

// calm is what comes after all that: the runtime knows its containers and shows what it
// has started, and the rest may start.
func (h *simulation) calm() {
	clear(h.fake.hidden)
	for _, id := range h.those(runtime.Created, func(s *simulated) bool { return s.read != nil }) {
		h.finish(id)
	}
	_ = h.Follow(h.t.Context()) // what it finds only now may be starting
	h.wait(placement.StartTime)
	_ = h.Follow(h.t.Context()) // own CPUs are written after others have left them
	if err := h.Follow(h.t.Context()); err != nil {
		h.r.Fatalf("starts are held up: %v:\n%s", err, errors.Join(lines(h.log)...))
	}
	h.cleared()
	h.calmed = true
	for _, id := range h.those(runtime.Created, func(*simulated) bool { return true }) {
		if _, here := h.ledger.View().Pod(h.boxes[id].pod); !here {
			continue
		}
		if err := h.tryStart(id); err != nil {
			h.r.Fatalf("%s is not let start: %v:\n%s", id, err, errors.Join(lines(h.log)...))
		}
		h.fake.start(h.t, id)
		h.check()
	}
	h.empty()
}

// empty removes all pods: then nothing is remembered of them and of their containers.
func (h *simulation) empty() {
	ctx, view := h.t.Context(), h.ledger.View()
	for p := range view.Pods() {
		h.must(h.RemovePod(ctx, view, p.UID()))
		h.update(func(d *ledger.Draft) { d.RemovePod(p.UID()) })
	}
	h.wait(placement.StartTime)
	h.must(h.Follow(ctx))
	l := h.Loop
	tr, leaving, opening, sharers := l.tracker, l.wanted.leaving, l.sandboxes.opening.pods, l.sandboxes.sharers.pods
	if known := slices.Collect(tr.All()); len(known)+len(tr.writes)+len(tr.cgroups)+len(leaving)+len(tr.starting)+len(opening)+
		len(sharers) > 0 {
		h.r.Fatalf("of pods that are gone these are left: containers %+v, writes %v, cgroups %v, leaving %v, starting %v, opening %v, sharers %v:\n%s",
			known, tr.writes, tr.cgroups, leaving, tr.starting, opening, sharers, errors.Join(lines(h.log)...))
	}
}

func lines(log []string) (out []error) {
	for _, l := range log {
		out = append(out, errors.New(l))
	}
	return out
}

// A container that runs gets more CPUs of its own only after all others have left them, whichever call
// writes them.
func TestMoreOwnCPUsAreFreeFirst(t *testing.T) {
	t.Parallel()
	for version, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		for _, beside := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, runtime %t", version, beside), func(t *testing.T) {
				t.Parallel()
				b, d := newFakeRuntime(t, facts)
				shared, own := "/kubepods/poda/a1", "/kubepods/podown/own1"
				start := func(id, pod string) {
					if beside {
						d.create(id, pod, "0-3")
						b.must(b.prestart(id, pod))
						d.start(t, id)
						return
					}
					path, err := b.EnsureContainer(t.Context(), b.ledger.View(), admission.Start{Binding: box(id, pod)})
					b.must(err)
					b.must(b.tree.Move(t.Context(), name(path), b.tree.Spawn(memtree.Mortal)))
					b.update(func(d *ledger.Draft) {
						bound := box(id, pod)
						bound.CgroupPath, bound.Own = path, true
						d.Bind(bound)
					})
				}
				if !beside {
					b.Runtime, shared, own = nil, "/kubepods/poda/c", "/kubepods/podown/c"
				}
				start("a1", "a")
				b.commit(exclusivePod("own", "3"))
				start("own1", "own")
				b.must(b.Follow(t.Context()))
				b.runsOn(shared, "0-2")
				b.runsOn(own, "3")
				d.set(func() { d.stopped = map[string]error{"a1": errRefused} })
				b.refuse[shared] = errRefused
				b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod("own", "2-3")) })
				for range 2 {
					if err := b.Follow(t.Context()); err == nil {
						t.Error("a container that cannot be moved is no error")
					}
					b.runsOn(own, "3")
					if err := b.Pass(t.Context()); err == nil {
						t.Error("a container that cannot be moved is no error in a pass")
					}
					b.runsOn(own, "3")
				}
				d.set(func() { d.stopped = nil })
				clear(b.refuse)
				b.must(errors.Join(b.Follow(t.Context()), b.Follow(t.Context())))
				b.runsOn(shared, "0-1")
				b.runsOn(own, "2-3")
			})
		}
	}
}

// The same holds for a container whose start was allowed and that has no process yet.
func TestMoreOwnCPUsBeforeAProcess(t *testing.T) {
	t.Parallel()
	b, d := newFakeRuntime(t, memtree.V2())
	d.create("a1", "a", "0-3")
	b.must(b.prestart("a1", "a"))
	d.start(t, "a1")
	b.commit(exclusivePod("own", "3"))
	d.create("own1", "own", "3")
	b.must(b.prestart("own1", "own"))
	b.must(b.Follow(t.Context()))
	d.set(func() { d.stopped = map[string]error{"a1": errRefused} })
	b.update(func(d *ledger.Draft) { d.PutPod(exclusivePod("own", "2-3")) })
	for range 2 {
		if err := errors.Join(b.Follow(t.Context()), b.Pass(t.Context())); err == nil {
			t.Error("a container that cannot be moved is no error")
		}
		if got := d.boxes["own1"].values.CPUs.String(); got != "3" {
			t.Errorf("it starts on %s, and a1 runs on 0-2", got)
		}
	}
	d.set(func() { d.stopped = nil })
	b.must(errors.Join(b.Follow(t.Context()), b.Follow(t.Context())))
	if got := d.boxes["own1"].values.CPUs.String(); got != "2-3" {
		t.Errorf("it starts on %s when a1 has left", got)
	}
}
