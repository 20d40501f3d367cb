package policy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// reconcile compares berthd's ledger with the members, and sets the members' CPUs from the ledger. On
// a large node this takes several passes. The lock is free between passes, so that events are handled.
// The caller holds mu.
func (p *Policy) reconcile(ctx context.Context) error {
	if p.unreconciled && p.synchronized {
		if err := p.report(ctx); err != nil {
			return err
		}
		p.incomplete = true
		for _, m := range p.live() {
			m.match = max(m.match, due)
		}
	}
	p.unreconciled = false
	p.takeBack()
	enough, cancel := halfOf(ctx)
	defer cancel()
	p.searchAgain(enough)
	p.tryDenied()
	if p.incomplete {
		if err := p.complete(ctx, func() bool { return enough.Err() != nil }); err != nil {
			return err
		}
	}
	return p.want(ctx)
}

// halfOf limits a context to half of the time that it has left.
func halfOf(ctx context.Context) (context.Context, context.CancelFunc) {
	at, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(at)/2)
}

// report sends the list of living pods to a berthd that moves no containers itself.
func (p *Policy) report(ctx context.Context) error {
	if p.standby != nil {
		return p.standby
	}
	// Without an answer it is unknown whether berthd moves containers itself.
	err := Alone(ctx, p.Client)
	if err == nil || errdefs.ClassOf(err) == errdefs.Precondition {
		p.barred = err
	}
	if err != nil {
		return err
	}
	if err := p.warnOfDevices(ctx); err != nil {
		return err
	}
	return p.syncPods(ctx)
}

// searchAgain looks for the specifications of pods for which that has failed, those with the fewest failures first: a pod whose
// source fails does not delay the others. The next round is later, because the lock is held meanwhile.
func (p *Policy) searchAgain(ctx context.Context) {
	if p.Now().Before(p.searchAt) {
		return
	}
	var left []*sandbox
	for _, s := range p.sandboxes {
		if s.unfound {
			left = append(left, s)
		}
	}
	slices.SortFunc(left, func(a, b *sandbox) int { return cmp.Or(cmp.Compare(a.searches, b.searches), cmp.Compare(a.id, b.id)) })
	var failures []string
	for _, s := range left {
		if ctx.Err() != nil {
			p.kick() // the next pass goes on, unless a source does not answer
			break
		}
		if err := p.search(ctx, s); err != nil {
			s.searches++
			failures = append(failures, fmt.Sprintf("%s/%s: %v", s.namespace, s.name, err))
			continue
		}
		for _, m := range p.members {
			if m.pod == s {
				p.compareAgain(m)
			}
		}
	}
	if len(failures) > 0 {
		p.searchAt = p.Now().Add(compareInterval)
	}
	p.unfound.log(p.Log, "the specification of pods is not found", failures)
}

// listing is the content of berthd's ledger at one moment.
type listing struct {
	revision   uint64
	pods       map[string]*typesv1.PodAllocation       // by uid
	containers map[string]*typesv1.ContainerAllocation // by uid/name
	loose      map[string]bool                         // uids of pods with allocations that no sandbox had then
	// unadmitted are the pods that berthd has lost, and of which it knows something that they hold; by uid.
	unadmitted map[string]*typesv1.PodAllocation
}

// known returns the pods that berthd has, and those that it has lost and of which it knows something that they hold.
func (l listing) known() map[string]*typesv1.PodAllocation {
	known := maps.Clone(l.unadmitted)
	maps.Copy(known, l.pods)
	return known
}

// has reports whether berthd has a pod, or has lost it and knows something that it holds.
func (l listing) has(uid string) bool { return l.pods[uid] != nil || l.unadmitted[uid] != nil }

// of returns a member's allocation; nil if berthd has none.
func (l listing) of(m *member) *typesv1.ContainerAllocation { return l.containers[m.key+"/"+m.name] }

// place returns the allocation with a member's CPUs and memory: those of its claims, or that of its pod. It
// is nil if one is not in the ledger.
func (l listing) place(m *member) *typesv1.ContainerAllocation {
	if len(m.claims) == 0 {
		return l.of(m)
	}
	var parts []*typesv1.ContainerAllocation
	for _, part := range m.claims {
		c := l.containers[part.uid+"/"+part.container]
		if c == nil {
			return nil
		}
		parts = append(parts, c)
	}
	return combined(parts)
}

// list reads the ledger, and the shared CPUs. If the ledger has a pod that is not alive, an answer was
// lost, and berthd needs the list of living pods again.
func (p *Policy) list(ctx context.Context) (l listing, err error) {
	answer, err := p.Client.Allocation().List(ctx, &allocationv1.ListRequest{})
	if err != nil {
		return l, err
	}
	if p.shared, err = cpuset.Parse(answer.GetSharedCpus().GetList()); err != nil {
		return l, errdefs.Internalf("shared CPUs: %w", err)
	}
	unadmitted := slices.DeleteFunc(answer.GetUnadmittedPods(), holdsNothing)
	l = listing{revision: answer.GetRevision(), pods: byUID(answer.GetPods()), unadmitted: byUID(unadmitted),
		containers: map[string]*typesv1.ContainerAllocation{}, loose: map[string]bool{}}
	for _, pod := range answer.GetPods() {
		for _, c := range pod.GetContainers() {
			l.containers[pod.GetUid()+"/"+c.GetContainerName()] = c
		}
	}
	known := l.known()
	p.adopt(known)
	living, missing, err := p.living(known)
	for _, uid := range missing {
		l.loose[podOf(uid)] = true
		if _, lives := slices.BinarySearch(living, uid); err == nil && !lives {
			p.unreconciled = true
			p.kickLater()
		}
	}
	// berthd shares the CPUs of claims and members that it has lost, until they are admitted again.
	p.forgotten = p.prepared(func(uid string) bool { return l.pods[uid] != nil }).Union(p.withheld(l))
	p.shared = p.shared.Minus(p.forgotten)
	p.ledger = l
	return l, nil
}

func byUID(pods []*typesv1.PodAllocation) map[string]*typesv1.PodAllocation {
	out := make(map[string]*typesv1.PodAllocation, len(pods))
	for _, pod := range pods {
		out[pod.GetUid()] = pod
	}
	return out
}

// holdsNothing reports whether berthd knows of nothing that a pod has.
func holdsNothing(pod *typesv1.PodAllocation) bool {
	return len(pod.GetContainers())+len(pod.GetClaims()) == 0
}

// complete compares the members with the ledger, until enough. Members without an allocation are
// admitted, and berthd gets the runtime's sizes, because members may have been resized while this
// plugin was not running.
func (p *Policy) complete(ctx context.Context, enough func() bool) error {
	l, err := p.list(ctx)
	if err != nil {
		return err
	}
	for _, s := range p.sandboxes {
		has := l.has(s.uid)
		switch {
		case s.form == whole && !has: // berthd has lost it
			s.form = unadmitted
		case s.form == unadmitted && has: // the answer to its admission was lost
			s.form = whole
		}
	}
	left := slices.DeleteFunc(p.live(), func(m *member) bool { return m.match < due || p.crashed(m) })
	oldestFirst(left)
	done, again := 0, p.kick // each pass does something
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
			again = p.kickLater
		}
	}
	if l, err = p.list(ctx); err != nil {
		return err
	}
	p.incomplete = false
	for _, m := range left {
		if m.match != due {
			p.incomplete = p.incomplete || m.match == unplaced
			continue
		}
		if done++; done > 1 && enough() {
			p.incomplete = true
			again()
			return nil
		}
		if err := p.compareSize(ctx, m, l.of(m)); err != nil {
			p.incomplete = true
			return err
		}
		p.incomplete = p.incomplete || m.match == due
	}
	if p.incomplete {
		p.kickLater()
	}
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
func (p *Policy) tryDenied() {
	now, room, tried := p.Now(), p.room.Load(), false
	for _, m := range p.live() {
		if m.match != denied || m.room == room || p.crashed(m) {
			continue
		}
		if now.Before(p.deniedAt) {
			p.kickLater()
			return
		}
		m.match, p.incomplete, tried = due, true, true
	}
	if tried {
		p.deniedAt = now.Add(sweeping)
	}
}

// unanswered reports whether an error means that berthd does not answer. If berthd itself lacks
// something, such as a device plugin, the error has a reason.
func unanswered(err error) bool {
	var e *berth.Error
	return errors.As(err, &e) && e.Code == codes.Unavailable && e.Reason == ""
}

// decided reports whether an error is a decision: the same call fails again until the node changes.
// After any other error the next call may succeed.
func decided(err error) bool {
	if errors.As(err, new(*berth.Error)) {
		return berth.IsDecided(err)
	}
	switch errdefs.ClassOf(err) {
	case errdefs.Refused, errdefs.Invalid, errdefs.NotFound, errdefs.Exists, errdefs.Precondition, errdefs.PermissionDenied,
		errdefs.Unsupported:
		return true
	}
	return false
}

// place restores a member. A refused member is unmanaged until resources have become free. If the
// allocation cannot be read now, the member keeps its CPUs, and a later pass tries again. An error
// means that berthd does not answer.
func (p *Policy) place(ctx context.Context, m *member) error {
	within, cancel := halfOf(ctx) // the kubelet may not answer
	defer cancel()
	room, before := p.room.Load(), m.key
	err := p.restore(within, m)
	switch {
	case err == nil:
		if m.tries = 0; before == "" {
			p.tellPlaced(m)
		}
	case ctx.Err() != nil, unanswered(err):
		return err
	case !decided(err):
		m.key, m.match = "", unplaced
		m.tries++
		m.logOnce(ctx, p.Log, "a running container has no allocation yet, and stays on its CPUs", err)
		if m.tries == tellAfter {
			p.tell(m, true, ReasonNotPlaced, "has no place yet, and stays on the CPUs on which it runs: %v", err)
		}
	default:
		m.key, m.claims, m.own, m.former, m.free, m.match, m.room = "", nil, cpuset.Set{}, cpuset.Set{}, false, denied, room
		m.moved = m.moved || m.lostQuota() > 0
		if m.logOnce(ctx, p.Log, "a running container has no allocation, and is moved to the shared CPUs until berthd has a place", err) {
			p.tell(m, true, ReasonNotPlaced, "is on the shared CPUs until berthd has a place: %v", err)
		}
	}
	return nil
}

// logOnce logs a failure of a member as a warning, unless it was the last one already. It reports whether it was another one.
func (m *member) logOnce(ctx context.Context, log *slog.Logger, what string, err error) (other bool) {
	level, text := slog.LevelDebug, what+err.Error()
	if text != m.refused {
		level, m.refused, other = slog.LevelWarn, text, true
	}
	log.Log(ctx, level, what, "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "error", err)
	return other
}

// compareSize reports a running container's size to berthd, if berthd counts another one. If berthd
// refuses the size, the container keeps its CPUs until resources have become free. An error means that
// berthd does not answer.
func (p *Policy) compareSize(ctx context.Context, m *member, counted *typesv1.ContainerAllocation) error {
	if counted == nil || p.isReplaced(m) || !m.resized(counted) {
		m.match, m.unsure = compared, m.unsure && counted == nil // want detects a pod that berthd has lost
		return nil
	}
	within, cancel := halfOf(ctx)
	defer cancel()
	room := p.room.Load()
	err := p.count(within, m)
	switch {
	case err == nil:
		m.match, m.unsure = compared, false
		return nil
	case ctx.Err() != nil, unanswered(err):
		return err
	case decided(err), m.pod.unfound: // searchAgain finds the specification
		m.match, m.room, m.unsure = denied, room, false
	}
	m.logOnce(ctx, p.Log, "berthd has other resources for a container than the runtime", err)
	return nil
}

// restore gives a running container its allocation, or admits it.
func (p *Policy) restore(ctx context.Context, m *member) error {
	if err := p.compare(ctx, m.pod); err != nil {
		return err
	}
	if err := p.readClaims(ctx, m); err != nil {
		return err
	}
	a, err := p.allocate(ctx, m, p.keyOf(m))
	if err == nil && m.key != m.pod.uid {
		m.pod.admittedApart(p.sandboxes, m.name)
	}
	m.ofPod = err == nil && m.own.IsEmpty() && p.sharesPod(m)
	if berth.NeedsAdmission(err) {
		a, err = p.allocateOrAdmit(ctx, m)
	}
	if err != nil {
		return err
	}
	if err := p.withClaims(ctx, m, a); err != nil {
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
	return m.bind(ctx, p.Client)
}
