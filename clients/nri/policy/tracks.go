package policy

import (
	"errors"
	"slices"

	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// tracks has the CPUs on which each member may run: package placement decides, from what was sent to the runtime, what it answers, and what
// the kernel shows of the process.
type tracks struct {
	*common
	kernel  *kernel
	tracker placement.Tracker // by the ids of members
}

// state returns where a member may run.
func (t *tracks) state(m *member) (placement.Container, bool) { return t.tracker.Get(m.at()) }

// assign sets a member's CPUs in the ledger, and the exclusive ones among them.
func (t *tracks) assign(m *member, cpus, own cpuset.Set) { t.tracker.Want(m.at(), cpus, own) }

// grantable returns the CPUs that no other container may be on.
func (t *tracks) grantable(m *member, cpus cpuset.Set) cpuset.Set {
	return t.tracker.Grantable(m.at(), cpus)
}

// apply sends an event of a member to the tracker.
func (t *tracks) apply(m *member, kind placement.EventKind, cpus cpuset.Set) {
	t.tracker.Apply(placement.Event{Kind: kind, Key: m.at(), Name: m.title(), CPUs: cpus, At: t.now()})
}

// may reports whether processes of a member may run.
func (t *tracks) may(m *member) bool {
	c, known := t.state(m)
	return known && c.Phase != placement.Exited && c.Phase != placement.Planned
}

// hasProcess returns whether a member has had a process that may still be there.
func (t *tracks) hasProcess(m *member) bool { return m.pid != 0 && t.may(m) }

// crashed returns whether the process of a member has ended without an event of the runtime. Nothing is allocated for it: if the kubelet
// starts the container again, that is another member.
func (t *tracks) crashed(m *member) bool { return m.pid != 0 && !t.may(m) && !m.life.over() }

// pending reports whether a member may get its first process without another event of the runtime. The kubelet may have given up the
// start, and may have made another container of that name: the runtime completes the start nevertheless.
func (t *tracks) pending(m *member) bool {
	c, known := t.state(m)
	begun := c.Phase == placement.Starting || c.Phase == placement.Created
	return known && begun && m.pid == 0 && m.life.startable()
}

// occupies reports whether a member has a process, or may get one because this policy has permitted its start.
func (t *tracks) occupies(m *member) bool {
	return t.hasProcess(m) || m.life != inherited && t.pending(m)
}

// introduce adds a new member to the tracker, with the CPUs of its creation. Without CPUs the runtime
// chooses them, so the member may run anywhere until its process is seen. In both cases it is not stored yet: its phase is Starting.
func (t *tracks) introduce(m *member, cpus cpuset.Set) {
	if cpus.IsEmpty() {
		for _, kind := range []placement.EventKind{placement.Restore, placement.StartOverdue, placement.Allow} {
			t.apply(m, kind, cpuset.Set{})
		}
		return
	}
	t.apply(m, placement.Plan, cpuset.Set{})
	t.assign(m, cpus, m.own)
	t.apply(m, placement.Sent, cpus)
	t.apply(m, placement.Confirmed, cpus)
	t.apply(m, placement.Allow, cpuset.Set{})
}

// isReplaced reports whether another member of its name was created later, or has a process while the member has none, in whatever
// sandbox of the pod. The kubelet does not resize the member any more, and its size is not that of the container.
func (t *tracks) isReplaced(m *member) bool {
	for _, o := range t.node.members {
		if o != m && o.pod.uid == m.pod.uid && o.name == m.name && (o.created > m.created || m.pid == 0 && t.hasProcess(o)) {
			return true
		}
	}
	return false
}

// replaced reports whether another sandbox of the same pod has a process. The kubelet makes one when the earlier one has ended.
func (t *tracks) replaced(s *sandbox) bool {
	for _, other := range t.node.sandboxes {
		if other != s && other.uid == s.uid && (other.pid != 0 || t.node.some(other, t.hasProcess)) {
			return true
		}
	}
	return false
}

// sharesPod reports whether a container has the resources of its pod as a whole and not its own.
// For a pod with pod-level resources (KEP-2837) the kubelet writes the pod's amounts on each
// container. Of containers that run together, only one can have all amounts of the pod by itself,
// so each further one shares them.
func (t *tracks) sharesPod(m *member) bool {
	all := amounts.Of(m.pod.resources, false)
	isAll := func(m *member) bool {
		a := amounts.Of(m.resources, false)
		return a.CPURequest > 0 && a.CPURequest == all.CPURequest && a.MemoryLimit == all.MemoryLimit
	}
	return isAll(m) && t.node.some(m.pod, func(o *member) bool { return o.name != m.name && !o.life.over() && t.may(o) && isAll(o) })
}

// ownOf returns the CPUs that a member may have for itself: those of its last allocation. Of a member without one these are the CPUs of
// its process, if its pod is guaranteed and it requests whole CPUs, and not fewer than it runs on. Some of its CPUs may be offline.
func (t *tracks) ownOf(m *member) cpuset.Set {
	request := amounts.Request(m.resources)
	switch {
	case !t.may(m):
		return cpuset.Set{}
	case !m.own.IsEmpty():
		return m.own
	case m.match != unplaced || !m.even() || request == 0 || request%amounts.MilliPerCPU != 0:
		return cpuset.Set{}
	}
	cpus, err := t.kernel.cpusOf(&m.process)
	if m.pid == 0 || err != nil && !gone(err) {
		cpus, err = cpuset.Parse(m.resources.GetCpu().GetCpus())
	}
	if err != nil || int64(cpus.Len())*amounts.MilliPerCPU > request {
		return cpuset.Set{}
	}
	return cpus
}

// alone returns the CPUs on which a member runs that is still to be compared with the ledger, and no other one does. Berthd may have given
// them to it and taken them again, while no update of it was due. A member that runs wherever the shared ones may has none.
func (t *tracks) alone(m *member, shared cpuset.Set) cpuset.Set {
	at, _ := t.state(m)
	if m.match < due || m.pid == 0 || at.Anywhere || shared.IsSubsetOf(at.PossibleCPUs) {
		return cpuset.Set{}
	}
	cpus := at.PossibleCPUs
	for _, other := range t.node.all() {
		if o, _ := t.state(other); other != m && t.may(other) {
			cpus = cpus.Minus(o.PossibleCPUs)
		}
	}
	return cpus
}

// observe reads the CPUs of a member's process and passes them to the tracker. A process may have
// narrowed its own affinity and may widen it again. As long as it stays within the CPUs that the
// member was given, all of them count. Without a process seen is false. With an error the
// process's CPUs are unknown.
func (t *tracks) observe(m *member) (now cpuset.Set, seen bool, err error) {
	if m.pid == 0 {
		return cpuset.Set{}, false, nil
	}
	now, err = t.kernel.cpusOf(&m.process)
	switch {
	case gone(err):
		t.apply(m, placement.Ended, cpuset.Set{})
		return cpuset.Set{}, false, nil
	case err != nil:
		return cpuset.Set{}, false, err
	}
	on := now
	if c, _ := t.state(m); now.IsSubsetOf(c.AssignedCPUs) {
		on = c.AssignedCPUs
	}
	t.apply(m, placement.KernelRuns, on)
	return now, true, nil
}

// began sends the start of a member's process to the tracker. CPUs that were sent earlier may
// have come too late for the start, so the kernel's value is read.
func (t *tracks) began(m *member, pid int) {
	t.node.ran(m.pod, m.name)
	if m.life = m.life.after(begin); m.pid != pid {
		m.pid, m.born, m.missed = pid, 0, !m.pushed.IsEmpty()
	}
	t.apply(m, placement.ShownRunning, cpuset.Set{})
	now, err := t.kernel.cpusOf(&m.process)
	switch {
	case gone(err):
		t.apply(m, placement.Ended, cpuset.Set{})
	case err == nil:
		t.apply(m, placement.KernelRuns, now)
	}
}

// end sends a member's end to the tracker. Its process may still exist.
func (t *tracks) end(m *member) {
	if m.pid != 0 {
		if _, err := t.kernel.cpusOf(&m.process); gone(err) {
			t.apply(m, placement.Ended, cpuset.Set{})
			return
		}
	}
	t.apply(m, placement.Stop, cpuset.Set{})
}

// send passes CPUs to the tracker that a response carries to the runtime. The runtime applies a
// response before its next event.
func (t *tracks) send(m *member, cpus cpuset.Set) {
	t.apply(m, placement.Sent, cpus)
	m.answered, m.behind = cpus, !m.pushed.IsEmpty()
}

// sendRequested passes CPUs to the tracker that a requested update carries.
func (t *tracks) sendRequested(m *member, cpus cpuset.Set) {
	t.apply(m, placement.Sent, cpus)
	m.pushed, m.missed = cpus, false
}

// arrived records that the runtime has applied its last responses. It has sent an event, or has
// finished an update, since. The result is unknown. The CPUs of a container that is not stored
// yet or is starting are read from its process later. An update that was requested before the
// response may still be applied after it.
func (t *tracks) arrived() {
	for _, m := range t.node.members {
		if m.answered.IsEmpty() || m.behind && !m.pushed.IsEmpty() {
			continue
		}
		t.outcome(m, m.answered, nil)
		m.answered = cpuset.Set{}
	}
}

// outcome passes the result of sent CPUs to the tracker. If the result is unknown, they remain
// pending.
func (t *tracks) outcome(m *member, cpus cpuset.Set, err error) {
	now, seen, blind := t.observe(m)
	switch {
	case m.missed && seen && err == nil && now != cpus && now.IsSubsetOf(cpus):
		t.agenda.later() // it may have missed them, or have narrowed itself
	case !errors.Is(err, errRefused) && seen && (now == cpus || err == nil && now.IsSubsetOf(cpus)):
		t.apply(m, placement.Confirmed, cpus) // a process that has only some of them may have narrowed itself
	case seen && err == nil, errors.Is(err, errRefused):
		t.apply(m, placement.Refused, cpus)
		t.agenda.later() // and not at once: it may fail for ever
	case err == nil && blind == nil:
		t.apply(m, placement.Confirmed, cpus)
	}
}

// due returns the updates that are due, of the members that chosen selects. The runtime
// cannot update a container that it does not store yet. Such a container is compared when it is
// stored, and when it runs. Of an unplaced member it is not known whether it is to have a quota.
func (t *tracks) due(shared cpuset.Set, chosen func(*member, placement.Container) bool) (out []placement.Write) {
	able := func(m *member, c placement.Container) bool {
		return !m.life.over() && !m.life.unlisted() && m.match != unplaced && c.Phase != placement.Starting && chosen(m, c)
	}
	for _, w := range t.tracker.Writes(shared) {
		m := t.node.members[w.ID]
		if c, _ := t.tracker.Get(w.Key); m != nil && m.pushed != w.CPUs && able(m, c) {
			out = append(out, w)
		}
	}
	for _, m := range t.node.live() {
		c, _ := t.state(m)
		listed := slices.ContainsFunc(out, func(w placement.Write) bool { return w.ID == m.id })
		// Other containers may still be on some of the CPUs that it gets.
		cpus := t.grantable(m, c.WantedCPUs)
		// A response with other CPUs may have been carried out since it was to have these.
		due := m.moved || !m.answered.IsEmpty() && t.tracker.Unconfirmed(m.at())
		if due && !listed && !cpus.IsEmpty() && m.pushed != cpus && able(m, c) {
			out = append(out, placement.Write{Key: m.at(), CPUs: cpus})
		}
	}
	return out
}

// vacate checks that no other member may run on a member's exclusive CPUs. It also checks that a
// member, whose new CPUs were sent too late for its start, does not run on other members' CPUs.
func (t *tracks) vacate(m *member) error { return t.vacateBut(m, nil) }

// movedOff returns the members that writes of an answer move off a member's exclusive CPUs. The runtime carries these out before it makes
// the member, and does not make the member if one of them fails. A requested update may be carried out after the answer.
func (t *tracks) movedOff(m *member, writes []placement.Write) map[string]bool {
	out := map[string]bool{}
	for _, w := range writes {
		other := t.node.members[w.ID]
		c, _ := t.state(other)
		out[w.ID] = (c.Anywhere || c.PossibleCPUs.Overlaps(m.own)) && !other.pushed.Overlaps(m.own)
	}
	return out
}

// vacateBut is vacate for a member that the runtime would start anyway, while others are being moved off its CPUs.
func (t *tracks) vacateBut(m *member, moves map[string]bool) error {
	var errs []error
	for _, other := range t.node.all() {
		if _, _, err := t.observe(other); err != nil && other != m && !m.own.IsEmpty() && !moves[other.id] {
			errs = append(errs, errdefs.Unavailablef("CPUs %s may be in use by container %s: %w", m.own, other.title(), err))
		}
	}
	blockers := t.tracker.Block(m.at(), t.now())
	for _, b := range t.tracker.Intrusions(m.at()) { // with CPUs of its own, if they are not those of its creation
		if o := t.node.members[b.ID]; o != nil && o.life.granted() {
			blockers = append(blockers, b)
		}
	}
	for _, b := range blockers {
		if moves[b.ID] {
			continue
		}
		err := errdefs.Unavailablef("%s", b)
		if other := t.node.members[b.ID]; other != nil && other.pushed.Overlaps(m.own) {
			err = errdefs.Unavailablef("container %s may be moving to CPUs %s", b.Name, b.CPUs)
		}
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		t.agenda.kick()
		return errors.Join(errs...)
	}
	return nil
}

// overdue returns the members whose starts take too long.
func (t *tracks) overdue() (late []*member) {
	for _, key := range t.tracker.Overdue(t.now()) {
		if m := t.node.members[key.ID]; m != nil {
			late = append(late, m)
		}
	}
	return late
}

// forget discards a member, unless its process may still exist.
func (t *tracks) forget(m *member) {
	if !t.hasProcess(m) {
		t.discard(m)
	}
}

// discard removes a member and its state in the tracker.
func (t *tracks) discard(m *member) {
	t.tracker.Forget(m.at())
	delete(t.node.members, m.id)
}
