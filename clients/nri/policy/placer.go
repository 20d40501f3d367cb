package policy

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// placer compares the members with the ledger, and gives each its place.
type placer struct {
	*common
	gate       *gate
	tracks     *tracks
	kernel     *kernel
	view       *view
	claims     *claims
	finder     *finder
	sizes      *sizes
	admissions *admissions
	tell       func(PodEvent) // Config.Tell
	deniedAt   time.Time      // when denied members may be due again
	warned     bool           // devices that no plugin would give are in the log
}

// reconcile compares berthd's ledger with the members, and sets the members' CPUs from the ledger. On
// a large node this takes several passes. The lock is free between passes, so that events are handled.
// The caller holds mu.
func (p *placer) reconcile(ctx context.Context) error {
	if p.agenda.unreconciled && p.node.synchronized {
		if err := p.report(ctx); err != nil {
			return err
		}
		p.agenda.incomplete = true
		for _, m := range p.node.live() {
			m.match = max(m.match, due)
		}
	}
	p.agenda.unreconciled = false
	p.sizes.takeBack()
	enough, cancel := halfOf(ctx)
	defer cancel()
	p.finder.searchAgain(enough)
	p.tryDenied()
	if p.agenda.incomplete {
		if err := p.complete(ctx, func() bool { return enough.Err() != nil }); err != nil {
			return err
		}
	}
	return p.want(ctx)
}

// report sends the list of living pods to a berthd that moves no containers itself.
func (p *placer) report(ctx context.Context) error {
	if p.gate.standby != nil {
		return p.gate.standby
	}
	// Without an answer it is unknown whether berthd moves containers itself.
	err := Alone(ctx, p.client)
	if err == nil || errdefs.ClassOf(err) == errdefs.Precondition {
		p.gate.barred = err
	}
	if err != nil {
		return err
	}
	if err := p.warnOfDevices(ctx); err != nil {
		return err
	}
	return p.view.syncPods(ctx)
}

// complete compares the members with the ledger, until enough. Members without an allocation are
// admitted, and berthd gets the runtime's sizes, because members may have been resized while this
// plugin was not running.
func (p *placer) complete(ctx context.Context, enough func() bool) error {
	l, err := p.view.list(ctx)
	if err != nil {
		return err
	}
	for _, s := range p.node.sandboxes {
		has := l.has(s.uid)
		switch {
		case s.form == whole && !has: // berthd has lost it
			s.form = unadmitted
		case s.form == unadmitted && has: // the answer to its admission was lost
			s.form = whole
		}
	}
	left := slices.DeleteFunc(p.node.live(), func(m *member) bool { return m.match < due || p.tracks.crashed(m) })
	oldestFirst(left)
	done, again := 0, p.agenda.kick // each pass does something
	for _, m := range left {
		if m.placed(l) {
			continue
		}
		if done++; done > 1 && enough() {
			again()
			return nil
		}
		if err := p.place(ctx, m); err != nil {
			return err
		}
		if m.match == unplaced {
			again = p.agenda.later
		}
	}
	if l, err = p.view.list(ctx); err != nil {
		return err
	}
	p.agenda.incomplete = false
	for _, m := range left {
		if m.match != due {
			p.agenda.incomplete = p.agenda.incomplete || m.match == unplaced
			continue
		}
		if done++; done > 1 && enough() {
			p.agenda.incomplete = true
			again()
			return nil
		}
		if err := p.sizes.compare(ctx, m, l.of(m)); err != nil {
			p.agenda.incomplete = true
			return err
		}
		p.agenda.incomplete = p.agenda.incomplete || m.match == due
	}
	if p.agenda.incomplete {
		p.agenda.later()
	}
	return nil
}

// restore gives a running container its allocation, or admits it.
func (p *placer) restore(ctx context.Context, m *member) error {
	if err := p.view.compare(ctx, m.pod); err != nil {
		return err
	}
	if err := p.claims.read(ctx, m); err != nil {
		return err
	}
	a, err := p.view.allocate(ctx, m, p.view.keyOf(m))
	if err == nil && m.key != m.pod.uid {
		m.pod.admittedApart(p.node.sandboxes, m.name)
	}
	m.ofPod = err == nil && m.own.IsEmpty() && p.tracks.sharesPod(m)
	if berth.NeedsAdmission(err) {
		a, err = p.admissions.allocateOrAdmit(ctx, m)
	}
	if err != nil {
		return err
	}
	if err := p.claims.replace(ctx, m, a); err != nil {
		return err
	}
	m.match = due
	m.bound = slices.Contains(a.GetAllocation().GetContainerIds(), m.id)
	if mems := memoryNodes(a.GetResources()); mems != m.mems {
		m.mems, m.moved = mems, true
	}
	// It may have started before berth-nri did.
	m.moved = m.moved || m.free && m.resources.GetCpu().GetQuota().GetValue() > 0 || !m.free && m.lostQuota() > 0
	if m.pid == 0 {
		return nil // StartContainer binds it
	}
	return m.bind(ctx, p.client)
}

// want sets the members' CPUs and memory nodes from the ledger. The caller holds mu.
func (p *placer) want(ctx context.Context) error {
	l, err := p.view.list(ctx)
	if err != nil {
		return err
	}
	for _, m := range p.node.live() {
		if p.tracks.crashed(m) {
			continue
		}
		c := l.place(m)
		if m.match == unplaced || c == nil && (len(m.claims) > 0 || m.key != "") {
			// It stays where it is, and none of its CPUs is its by the ledger: it is in the way of what gets them.
			p.tracks.assign(m, cpuset.Set{}, p.tracks.ownOf(m))
		}
		switch {
		case m.match == unplaced:
			continue
		case len(m.claims) > 0 && c == nil: // berth-dra admits it again
			p.agenda.later()
			continue
		case m.key != "" && c == nil: // berthd has lost it
			p.agenda.unreconciled = true
			p.agenda.kick()
			continue
		}
		cpus, err := cpuset.Parse(c.GetCpus().GetList())
		if err != nil {
			return errdefs.Internalf("CPUs of container %s: %w", m.name, err)
		}
		if cpus.IsEmpty() {
			cpus = p.view.shared
		}
		if c.GetExclusiveCpus() && !m.own.IsEmpty() {
			m.own = cpus // a resize may have changed them
		}
		if now := pinnedNodes(c); now != "" && now != m.mems {
			m.mems, m.moved, m.stays, m.wide = now, true, time.Time{}, 0
		}
		m.held = claimedNodes(c)
		p.tracks.assign(m, cpus, m.own)
	}
	p.moveSandboxes()
	return nil
}

// admitPod admits a pod as a whole, if a source has its specification.
func (p *placer) admitPod(ctx context.Context, s *sandbox) error {
	if err := p.gate.bar(); err != nil {
		return err
	}
	if err := p.finder.search(ctx, s); err != nil {
		return err
	}
	if err := p.admissions.enter(ctx, s); err != nil {
		return err
	}
	p.moveSandboxes()
	return nil
}

// create allocates for a member, and returns the adjustment for the runtime.
func (p *placer) create(ctx context.Context, m *member) (cpus cpuset.Set, adjust *api.ContainerAdjustment, err error) {
	if err := p.gate.bar(); err != nil {
		return cpus, nil, err
	}
	if err := p.view.compare(ctx, m.pod); err != nil {
		return cpus, nil, err
	}
	if m.pod.spec == nil && m.pod.form != apart {
		if err := p.finder.search(ctx, m.pod); err != nil && m.pod.form == unadmitted {
			return cpus, nil, err
		}
	}
	if err := p.claims.read(ctx, m); err != nil {
		return cpus, nil, err
	}
	a, err := p.admissions.allocateOrAdmit(ctx, m)
	if err == nil {
		a, err = p.sizes.sized(ctx, m, a)
	}
	if err != nil {
		return cpus, nil, err
	}
	if err := p.claims.replace(ctx, m, a); err != nil {
		return cpus, nil, err
	}
	if adjust, err = adjustment(a, m.free); err != nil {
		return cpus, nil, err
	}
	if cpus, err = cpuset.Parse(a.GetResources().GetCpusetCpus().GetList()); err != nil {
		return cpus, nil, errdefs.Internalf("CPUs of container %s: %w", m.name, err)
	}
	m.mems = memoryNodes(a.GetResources())
	if err := p.want(ctx); err != nil {
		return cpus, nil, err
	}
	if left := cpus.Minus(p.view.forgotten); m.own.IsEmpty() && left != cpus {
		if left.IsEmpty() {
			return cpus, nil, errdefs.Unavailablef("CPUs %s are of claims or running containers that berthd does not have, and no other CPU is shared; they are admitted again", cpus)
		}
		cpus = left
		adjust.SetLinuxCPUSetCPUs(cpus.String())
	}
	return cpus, adjust, nil
}

// Alone refuses a berthd that moves a runtime's containers itself, with an error of class
// Precondition. Two programs would move them. There would also be a deadlock: berthd calls the
// runtime, the runtime waits for this plugin, and the plugin waits for berthd. Another error
// means that berthd's configuration could not be read.
func Alone(ctx context.Context, client *berth.Client) error {
	c, err := client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if e := c.GetRuntimeEndpoint(); e != "" {
		return errdefs.Preconditionf("berthd at %s runs with --runtime-endpoint %s and would move the same containers as berth-nri: start berthd without --runtime-endpoint, or do not use berth-nri", client.Endpoint(), e)
	}
	return nil
}

// everywhere in a configuration's devices.elsewhere means every extended resource that is unknown
// to berthd.
const everywhere = "*"

// warnOfDevices logs a warning if berthd rejects pods with devices of the kubelet's plugins.
// Without specifications berthd gets no request for devices.
func (p *placer) warnOfDevices(ctx context.Context) error {
	if !p.finder.hasSource() || p.warned {
		return nil
	}
	c, err := p.client.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
	if err != nil {
		return err
	}
	if c.GetDevicesUnknown() == nodev1.UnknownDevicePolicy_UNKNOWN_DEVICE_POLICY_IGNORE ||
		slices.Contains(c.GetDevicesElsewhere(), everywhere) {
		return nil
	}
	p.warned = true
	p.log.Warn("pods that request devices of the kubelet's plugins are rejected: start berthd with --devices-elsewhere '*'",
		"devices.unknown", convert.Word(c.GetDevicesUnknown()), "devices.elsewhere", c.GetDevicesElsewhere())
	return nil
}

// placed reports whether the ledger has a member's present allocation.
func (m *member) placed(l listing) bool {
	c, place := l.of(m), l.place(m)
	return m.match == due && m.key != "" && c != nil && place != nil && place.GetExclusiveCpus() == !m.own.IsEmpty() &&
		(m.pid == 0 || slices.Contains(c.GetContainerIds(), m.id))
}

// tryDenied makes refused members due again, if resources may have become free since. Each costs
// berthd a decision, so there is a pause between two tries.
func (p *placer) tryDenied() {
	now, room, tried := p.now(), p.agenda.room.Load(), false
	for _, m := range p.node.live() {
		if m.match != denied || m.room == room || p.tracks.crashed(m) {
			continue
		}
		if now.Before(p.deniedAt) {
			p.agenda.later()
			return
		}
		m.match, p.agenda.incomplete, tried = due, true, true
	}
	if tried {
		p.deniedAt = now.Add(sweeping)
	}
}

// place restores a member. A refused member is unmanaged until resources have become free. If the
// allocation cannot be read now, the member keeps its CPUs, and a later pass tries again. An error
// means that berthd does not answer.
func (p *placer) place(ctx context.Context, m *member) error {
	within, cancel := halfOf(ctx) // the kubelet may not answer
	defer cancel()
	room, before := p.agenda.room.Load(), m.key
	err := p.restore(within, m)
	switch {
	case err == nil:
		if m.tries = 0; before == "" {
			p.sayPlaced(m)
		}
	case ctx.Err() != nil, unanswered(err):
		return err
	case !decided(err):
		m.key, m.match = "", unplaced
		m.tries++
		m.logOnce(ctx, p.log, "a running container has no allocation yet, and stays on its CPUs", err)
		if m.tries == tellAfter {
			p.say(m, true, ReasonNotPlaced, "has no place yet, and stays on the CPUs on which it runs: %v", err)
		}
	default:
		m.key, m.claims, m.own, m.former, m.free, m.match, m.room = "", nil, cpuset.Set{}, cpuset.Set{}, false, denied, room
		m.moved = m.moved || m.lostQuota() > 0
		if m.logOnce(ctx, p.log, "a running container has no allocation, and is moved to the shared CPUs until berthd has a place", err) {
			p.say(m, true, ReasonNotPlaced, "is on the shared CPUs until berthd has a place: %v", err)
		}
	}
	return nil
}

// resize changes a container's resources in berthd. An unmanaged container has none there. After an error the runtime keeps the size
// that it has, and berthd may have either size: they are compared again. The caller holds mu.
func (p *placer) resize(ctx context.Context, m *member, r *api.LinuxResources) error {
	if m.match == unplaced {
		if err := p.placeNow(ctx, m); err != nil {
			m.moved = true // with an earlier quota it stays where it is
			return err
		}
	}
	if err := p.sizes.settle(ctx, m.key); err != nil {
		return err
	}
	was := m.resources
	m.resources = r
	err := p.sizes.count(ctx, m)
	m.unsure = undecided(err)
	if err == nil {
		if err = p.want(ctx); err != nil { // berthd has the new size
			m.unsure = true
			p.agenda.compareAgain(m)
			p.agenda.later()
		}
	}
	if err != nil {
		m.resources = was
	}
	return err
}

// PodEvent tells the owner of a pod about its place.
type PodEvent struct {
	Namespace, Name, UID string
	Reason, Message      string
	Warning              bool
}

// Reasons of events.
const (
	// ReasonPlaced is of a pod that ran without an allocation and has exclusive CPUs now.
	ReasonPlaced = "Placed"
	// ReasonNotPlaced is of a pod that runs, and that berthd has refused.
	ReasonNotPlaced = "NotPlaced"
)

// tellAfter is how many tries to place a running container fail before its pod has an event. The kubelet may just be starting.
const tellAfter = 5

// say sends an event about a member's pod.
func (p *placer) say(m *member, warning bool, reason, format string, args ...any) {
	if p.tell != nil {
		p.tell(PodEvent{m.pod.namespace, m.pod.name, m.pod.uid, reason, fmt.Sprintf("container "+m.name+" "+format, args...), warning})
	}
}

// sayPlaced says where a container runs from now on that ran somewhere else without an allocation.
func (p *placer) sayPlaced(m *member) {
	if m.own.IsEmpty() {
		return
	}
	if now, seen, err := p.tracks.observe(m); err != nil || !seen || now == m.own {
		return // it runs there already, or does not run
	}
	memory := "its memory stays where it is; restart the pod to have it near the CPUs"
	if m.mems != "" {
		memory = "its memory is bound to NUMA nodes " + m.mems + "; berthd does not wait until the kernel has moved it"
	}
	p.say(m, false, ReasonPlaced, "ran without a place, and has CPUs %s for itself from now on; %s", m.own, memory)
}

// oldestFirst orders members: those whose earlier tries have failed come last, so that they do not delay the others. Among the
// others, the pods come in the order in which they began, with all of their containers.
func oldestFirst(members []*member) {
	began := map[*sandbox]int64{}
	for _, m := range members {
		if at, ok := began[m.pod]; !ok || m.created < at {
			began[m.pod] = m.created
		}
	}
	slices.SortStableFunc(members, func(a, b *member) int {
		return cmp.Or(cmp.Compare(a.tries, b.tries), cmp.Compare(began[a.pod], began[b.pod]), cmp.Compare(a.pod.id, b.pod.id),
			cmp.Compare(a.created, b.created))
	})
}

// placeNow compares an unplaced member with the ledger for an event that cannot wait for reconcile.
func (p *placer) placeNow(ctx context.Context, m *member) error {
	if m.pod.unfound {
		if err := p.finder.search(ctx, m.pod); err != nil {
			return err
		}
	}
	if err := p.restore(ctx, m); err != nil {
		return err
	}
	return p.want(ctx)
}

// moveSandboxes puts the processes of sandboxes on the shared CPUs. The runtime starts
// them on all CPUs, and no event of NRI can change that.
func (p *placer) moveSandboxes() {
	if p.view.shared.IsEmpty() {
		return
	}
	for _, s := range p.node.sandboxes {
		if tried, err := p.kernel.moveTo(s, p.view.shared); tried {
			s.logMove(p.log, p.view.shared, err)
		}
	}
}
