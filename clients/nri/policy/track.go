package policy

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// state returns where a member may run.
func (p *Policy) state(m *member) (placement.Container, bool) { return p.tracker.Get(m.at()) }

// assign sets a member's CPUs in the ledger, and the exclusive ones among them.
func (p *Policy) assign(m *member, cpus, own cpuset.Set) { p.tracker.Want(m.at(), cpus, own) }

// grantable returns the CPUs that no other container may be on.
func (p *Policy) grantable(m *member, cpus cpuset.Set) cpuset.Set { return p.tracker.Grantable(m.at(), cpus) }

// apply sends an event of a member to the tracker.
func (p *Policy) apply(m *member, kind placement.EventKind, cpus cpuset.Set) {
	p.tracker.Apply(placement.Event{Kind: kind, Key: m.at(), Name: m.title(), CPUs: cpus, At: p.Now()})
}

// may reports whether processes of a member may run.
func (p *Policy) may(m *member) bool {
	c, known := p.state(m)
	return known && c.Phase != placement.Exited && c.Phase != placement.Planned
}

// hasProcess returns whether a member has had a process that may still be there.
func (p *Policy) hasProcess(m *member) bool { return m.pid != 0 && p.may(m) }

// crashed returns whether the process of a member has ended without an event of the runtime. Nothing is allocated for it: if the kubelet
// starts the container again, that is another member.
func (p *Policy) crashed(m *member) bool { return m.pid != 0 && !p.may(m) && !m.life.over() }

// some returns whether a condition holds for a container of a pod.
func (p *Policy) some(s *sandbox, is func(*member) bool) bool {
	for _, m := range p.members {
		if m.pod == s && is(m) {
			return true
		}
	}
	return false
}

// want sets the members' CPUs and memory nodes from the ledger. The caller holds mu.
func (p *Policy) want(ctx context.Context) error {
	l, err := p.list(ctx)
	if err != nil {
		return err
	}
	for _, m := range p.live() {
		if p.crashed(m) {
			continue
		}
		c := l.place(m)
		if m.match == unplaced || c == nil && (len(m.claims) > 0 || m.key != "") {
			// It stays where it is, and none of its CPUs is its by the ledger: it is in the way of what gets them.
			p.assign(m, cpuset.Set{}, p.ownOf(m))
		}
		switch {
		case m.match == unplaced:
			continue
		case len(m.claims) > 0 && c == nil: // berth-dra admits it again
			p.kickLater()
			continue
		case m.key != "" && c == nil: // berthd has lost it
			p.unreconciled = true
			p.kick()
			continue
		}
		cpus, err := cpuset.Parse(c.GetCpus().GetList())
		if err != nil {
			return errdefs.Internalf("CPUs of container %s: %w", m.name, err)
		}
		if cpus.IsEmpty() {
			cpus = p.shared
		}
		if c.GetExclusiveCpus() && !m.own.IsEmpty() {
			m.own = cpus // a resize may have changed them
		}
		if now := pinnedNodes(c); now != "" && now != m.mems {
			m.mems, m.moved, m.stays, m.wide = now, true, time.Time{}, 0
		}
		m.held = claimedNodes(c)
		p.assign(m, cpus, m.own)
	}
	p.moveSandboxes()
	return nil
}

// estimateShared finds shared CPUs for containers that are let pass before berthd has answered. An earlier
// berth-nri has moved the sandboxes' processes to the shared CPUs. CPUs that members may have for themselves, and those of
// prepared claims, are not shared. If no CPUs are left, the shared CPUs stay unknown.
func (p *Policy) estimateShared() {
	if !p.shared.IsEmpty() {
		return
	}
	// berthd does not say which claims it has.
	own := p.prepared(func(string) bool { return false })
	var some, every cpuset.Set
	for _, m := range p.all() {
		own = own.Union(p.ownOf(m))
	}
	for _, s := range p.sandboxes {
		if s.pid == 0 {
			continue
		}
		cpus, err := p.cpusOf(&s.process)
		if err != nil {
			continue
		}
		if some.IsEmpty() {
			every = cpus
		}
		some, every = some.Union(cpus), every.Intersect(cpus)
	}
	if p.shared = every.Minus(own); p.shared.IsEmpty() {
		p.shared = some.Minus(own)
	}
}

// withheld returns the CPUs that members may have for themselves, whatever a list of the ledger has. So it is after berthd has lost its
// ledger, until a member is admitted again, and until it has left its CPUs if it has got others, even if berthd has given and taken them
// in between. Berthd shares these CPUs meanwhile.
func (p *Policy) withheld(l listing) (cpus cpuset.Set) {
	for _, m := range p.all() {
		if c := l.place(m); c == nil {
			cpus = cpus.Union(p.ownOf(m))
		} else if c.GetExclusiveCpus() {
			m.former = m.former.Union(p.ownOf(m)).Union(p.alone(m, p.shared))
		}
		if t, _ := p.state(m); !p.may(m) {
			m.former = cpuset.Set{}
		} else if !t.Anywhere {
			m.former = m.former.Intersect(t.PossibleCPUs) // it has left the others
		}
		cpus = cpus.Union(m.former)
	}
	return cpus
}

// ownOf returns the CPUs that a member may have for itself: those of its last allocation. Of a member without one these are the CPUs of
// its process, if its pod is guaranteed and it requests whole CPUs, and not fewer than it runs on. Some of its CPUs may be offline.
func (p *Policy) ownOf(m *member) cpuset.Set {
	request := milliRequest(m.resources)
	switch {
	case !p.may(m):
		return cpuset.Set{}
	case !m.own.IsEmpty():
		return m.own
	case m.match != unplaced || !m.even() || request == 0 || request%milliPerCPU != 0:
		return cpuset.Set{}
	}
	cpus, err := p.cpusOf(&m.process)
	if m.pid == 0 || err != nil && !gone(err) {
		cpus, err = cpuset.Parse(m.resources.GetCpu().GetCpus())
	}
	if err != nil || int64(cpus.Len())*milliPerCPU > request {
		return cpuset.Set{}
	}
	return cpus
}

// alone returns the CPUs on which a member runs that is still to be compared with the ledger, and no other one does. Berthd may have given
// them to it and taken them again, while no update of it was due. A member that runs wherever the shared ones may has none.
func (p *Policy) alone(m *member, shared cpuset.Set) cpuset.Set {
	t, _ := p.state(m)
	if m.match < due || m.pid == 0 || t.Anywhere || shared.IsSubsetOf(t.PossibleCPUs) {
		return cpuset.Set{}
	}
	cpus := t.PossibleCPUs
	for _, other := range p.all() {
		if o, _ := p.state(other); other != m && p.may(other) {
			cpus = cpus.Minus(o.PossibleCPUs)
		}
	}
	return cpus
}

// moveSandboxes puts the processes of sandboxes on the shared CPUs. The runtime starts
// them on all CPUs, and no event of NRI can change that.
func (p *Policy) moveSandboxes() {
	if p.shared.IsEmpty() {
		return
	}
	for _, s := range p.sandboxes {
		if tried, err := p.moveTo(s, p.shared); tried {
			s.logMove(p.Log, p.shared, err)
		}
	}
}

// moveTo sets the CPUs of a sandbox's process, unless it has none or was moved there already.
func (p *Policy) moveTo(s *sandbox, cpus cpuset.Set) (tried bool, err error) {
	if p.Move == nil || s.pid == 0 || s.cpus == cpus {
		return false, nil
	}
	err = p.Move(s.pid, s.id, s.cgroup, cpus)
	if err == nil || errdefs.ClassOf(err) == errdefs.PermissionDenied { // that is another pod's process, which is not moved
		s.cpus = cpus
	}
	return true, err
}

// logMove logs that the sandbox's process cannot be moved to some CPUs, once for a reason, and that it is moved again.
func (s *sandbox) logMove(log *slog.Logger, to cpuset.Set, err error) {
	if gone(err) {
		return
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	log = log.With("pod", s.namespace+"/"+s.name, "pid", s.pid, "cpus", to.String())
	switch {
	case text == s.unmoved:
	case text == "":
		log.Info("a sandbox's process is moved to the shared CPUs again")
	default:
		log.Warn("move a sandbox's process to the shared CPUs failed", "error", err)
	}
	s.unmoved = text
}

// cpusOf reads the CPUs of a process, and at first when it began. Another process with the same
// pid means that it has ended.
func (p *Policy) cpusOf(of *process) (cpuset.Set, error) {
	cpus, err := p.CPUsOf(of.pid)
	if err != nil || p.BornAt == nil {
		return cpus, err
	}
	at, err := p.BornAt(of.pid)
	switch {
	case err != nil:
		return cpuset.Set{}, err
	case of.born == 0:
		of.born = at
	case of.born != at:
		return cpuset.Set{}, fs.ErrNotExist
	}
	return cpus, nil
}

// observe reads the CPUs of a member's process and passes them to the tracker. A process may have
// narrowed its own affinity and may widen it again. As long as it stays within the CPUs that the
// member was given, all of them count. Without a process seen is false. With an error the
// process's CPUs are unknown.
func (p *Policy) observe(m *member) (now cpuset.Set, seen bool, err error) {
	if m.pid == 0 {
		return cpuset.Set{}, false, nil
	}
	now, err = p.cpusOf(&m.process)
	switch {
	case gone(err):
		p.apply(m, placement.Ended, cpuset.Set{})
		return cpuset.Set{}, false, nil
	case err != nil:
		return cpuset.Set{}, false, err
	}
	on := now
	if c, _ := p.state(m); now.IsSubsetOf(c.AssignedCPUs) {
		on = c.AssignedCPUs
	}
	p.apply(m, placement.KernelRuns, on)
	return now, true, nil
}

// began sends the start of a member's process to the tracker. CPUs that were sent earlier may
// have come too late for the start, so the kernel's value is read.
func (p *Policy) began(m *member, pid int) {
	p.ran(m.pod, m.name)
	if m.life = m.life.after(begin); m.pid != pid {
		m.pid, m.born, m.missed = pid, 0, !m.pushed.IsEmpty()
	}
	p.apply(m, placement.ShownRunning, cpuset.Set{})
	now, err := p.cpusOf(&m.process)
	switch {
	case gone(err):
		p.apply(m, placement.Ended, cpuset.Set{})
	case err == nil:
		p.apply(m, placement.KernelRuns, now)
	}
}

// end sends a member's end to the tracker. Its process may still exist.
func (p *Policy) end(m *member) {
	if m.pid != 0 {
		if _, err := p.cpusOf(&m.process); gone(err) {
			p.apply(m, placement.Ended, cpuset.Set{})
			return
		}
	}
	p.apply(m, placement.Stop, cpuset.Set{})
}

// send passes CPUs to the tracker that a response carries to the runtime. The runtime applies a
// response before its next event.
func (p *Policy) send(m *member, cpus cpuset.Set) {
	p.apply(m, placement.Sent, cpus)
	m.answered, m.behind = cpus, !m.pushed.IsEmpty()
}

// sendRequested passes CPUs to the tracker that a requested update carries.
func (p *Policy) sendRequested(m *member, cpus cpuset.Set) {
	p.apply(m, placement.Sent, cpus)
	m.pushed, m.missed = cpus, false
}

// arrived records that the runtime has applied its last responses. It has sent an event, or has
// finished an update, since. The result is unknown. The CPUs of a container that is not stored
// yet or is starting are read from its process later. An update that was requested before the
// response may still be applied after it.
func (p *Policy) arrived() {
	for _, m := range p.members {
		if m.answered.IsEmpty() || m.behind && !m.pushed.IsEmpty() {
			continue
		}
		p.outcome(m, m.answered, nil)
		m.answered = cpuset.Set{}
	}
}

// outcome passes the result of sent CPUs to the tracker. If the result is unknown, they remain
// pending.
func (p *Policy) outcome(m *member, cpus cpuset.Set, err error) {
	now, seen, blind := p.observe(m)
	switch {
	case m.missed && seen && err == nil && now != cpus && now.IsSubsetOf(cpus):
		p.kickLater() // it may have missed them, or have narrowed itself
	case !errors.Is(err, errRefused) && seen && (now == cpus || err == nil && now.IsSubsetOf(cpus)):
		p.apply(m, placement.Confirmed, cpus) // a process that has only some of them may have narrowed itself
	case seen && err == nil, errors.Is(err, errRefused):
		p.apply(m, placement.Refused, cpus)
		p.kickLater() // and not at once: it may fail for ever
	case err == nil && blind == nil:
		p.apply(m, placement.Confirmed, cpus)
	}
}

// errRefused is the error of an update that the runtime has reported as failed.
var errRefused = errors.New("the runtime refused")

// writable returns the updates that are due, of the members that chosen selects. The runtime
// cannot update a container that it does not store yet. Such a container is compared when it is
// stored, and when it runs. Of an unplaced member it is not known whether it is to have a quota.
func (p *Policy) writable(chosen func(*member, placement.Container) bool) (out []placement.Write) {
	able := func(m *member, c placement.Container) bool {
		return !m.life.over() && !m.life.unlisted() && m.match != unplaced && c.Phase != placement.Starting && chosen(m, c)
	}
	for _, w := range p.tracker.Writes(p.shared) {
		m := p.members[w.ID]
		if c, _ := p.tracker.Get(w.Key); m != nil && m.pushed != w.CPUs && able(m, c) {
			out = append(out, w)
		}
	}
	for _, m := range p.live() {
		c, _ := p.state(m)
		listed := slices.ContainsFunc(out, func(w placement.Write) bool { return w.ID == m.id })
		// Other containers may still be on some of the CPUs that it gets.
		cpus := p.grantable(m, c.WantedCPUs)
		// A response with other CPUs may have been carried out since it was to have these.
		due := m.moved || !m.answered.IsEmpty() && p.tracker.Unconfirmed(m.at())
		if due && !listed && !cpus.IsEmpty() && m.pushed != cpus && able(m, c) {
			out = append(out, placement.Write{Key: m.at(), CPUs: cpus})
		}
	}
	return out
}

// updates converts writes for a response. A failed update must not make the runtime fail its own
// request.
func (p *Policy) updates(writes []placement.Write) (out []*api.ContainerUpdate) {
	for _, w := range writes {
		m := p.members[w.ID]
		u := update(m, w.CPUs)
		u.SetIgnoreFailure()
		m.moved = false
		p.send(m, w.CPUs)
		out = append(out, u)
	}
	return out
}

// clear returns the updates that move other members off a member's exclusive CPUs.
func (p *Policy) clear(m *member) []*api.ContainerUpdate {
	if m.own.IsEmpty() {
		return p.answer(m, nobody)
	}
	for _, other := range p.all() {
		_, _, _ = p.observe(other) // a member that cannot be read keeps its possible CPUs
	}
	return p.answer(m, func(_ *member, c placement.Container) bool { return c.Anywhere || c.PossibleCPUs.Overlaps(m.own) })
}

// vacate checks that no other member may run on a member's exclusive CPUs. It also checks that a
// member, whose new CPUs were sent too late for its start, does not run on other members' CPUs.
func (p *Policy) vacate(m *member) error {
	var errs []error
	for _, other := range p.all() {
		if _, _, err := p.observe(other); err != nil && other != m && !m.own.IsEmpty() {
			errs = append(errs, errdefs.Unavailablef("CPUs %s may be in use by container %s: %w", m.own, other.title(), err))
		}
	}
	blockers := p.tracker.Block(m.at(), p.Now())
	for _, b := range p.tracker.Intrusions(m.at()) { // with CPUs of its own, if they are not those of its creation
		if o := p.members[b.ID]; o != nil && o.life.granted() {
			blockers = append(blockers, b)
		}
	}
	for _, b := range blockers {
		err := errdefs.Unavailablef("%s", b)
		if other := p.members[b.ID]; other != nil && other.pushed.Overlaps(m.own) {
			err = errdefs.Unavailablef("container %s may be moving to CPUs %s", b.Name, b.CPUs)
		}
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		p.kick()
		return errors.Join(errs...)
	}
	return nil
}

// ending is how long a container without a known process may take to end after the runtime has
// reported its end.
const ending = 2 * time.Second

// expire ends overdue members: starts that take too long, and ended containers that never had a
// visible process.
func (p *Policy) expire(ctx context.Context) {
	now := p.Now()
	for _, m := range p.overdue() {
		p.startOverdue(ctx, m)
	}
	for _, m := range p.all() {
		if m.life.over() && m.pid == 0 && now.Sub(m.ended) >= ending {
			p.apply(m, placement.KernelEmpty, cpuset.Set{})
		}
	}
}

// overdue returns the members whose starts take too long.
func (p *Policy) overdue() (late []*member) {
	for _, key := range p.tracker.Overdue(p.Now()) {
		if m := p.members[key.ID]; m != nil {
			late = append(late, m)
		}
	}
	return late
}

// forget discards a member, unless its process may still exist.
func (p *Policy) forget(m *member) {
	if !p.hasProcess(m) {
		p.discard(m)
	}
}

// discard removes a member and its state in the tracker.
func (p *Policy) discard(m *member) {
	p.tracker.Forget(m.at())
	delete(p.members, m.id)
}
