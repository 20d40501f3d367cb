package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// Synchronize takes over the running pods and containers. It reports the living pods to berthd,
// allocates for containers without an allocation, and corrects drifted CPUs. If berthd is
// unavailable, Follow does this later. Synchronize itself must be quick: after a timeout the
// runtime continues without the plugin.
func (p *Policy) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	var connecting *hearing
	if p.Kubelet != nil {
		asking, cancel := p.within(ctx, followShare)
		active, err := p.Kubelet.Active(asking)
		connecting = &hearing{active, err}
		cancel()
	}
	ctx, end := p.begin(ctx)
	defer end()
	if p.released {
		return nil, nil
	}
	p.connecting = connecting
	defer func() { p.connecting = nil }()
	p.synchronized, p.ledger = true, listing{}
	sandboxes, members := p.sandboxes, p.members
	p.sandboxes, p.members = map[string]*sandbox{}, map[string]*member{}
	for _, pod := range pods {
		s := p.sandbox(pod)
		s.told = 0
		if was := sandboxes[s.id]; was != nil {
			s.carry(was)
		}
		s.unfound, s.unread = true, true // reconcile searches for its specification and its allocations
	}
	for _, c := range containers {
		s := p.sandboxes[c.GetPodSandboxId()]
		if s == nil {
			if s = sandboxes[c.GetPodSandboxId()]; s == nil || c.GetState() == api.ContainerState_CONTAINER_STOPPED {
				continue
			}
			// The list lacks the sandbox of a container that it has.
			p.sandboxes[s.id] = s
			s.unread, s.leaving = true, s.pid == 0
		}
		p.take(s, c, members[c.GetId()])
	}
	p.dropReplaced(containers)
	for _, pod := range pods {
		if s := p.sandboxes[pod.GetId()]; s != nil && p.over(s, sandboxes[s.id]) { // nil if it is there twice
			p.drop(s)
		}
	}
	for _, m := range members {
		p.retain(m, sandboxes)
	}
	for _, was := range sandboxes {
		// The pod keeps what a container has had that will start again. Without its process, sweep finds that it has ended.
		if p.sandboxes[was.id] == nil && was.pid != 0 && p.runs(was) {
			p.sandboxes[was.id], was.unread = was, true
		}
	}
	p.Log.Info("synchronized with the runtime", "pods", len(pods), "containers", len(p.members))
	p.unreconciled = true
	if err := p.reconcile(ctx); err != nil {
		p.Log.Warn("running containers stay as they are for now", "error", err)
		p.estimateShared()
		p.kickLater()
		return nil, nil
	}
	p.kick() // sweep finds the members that have ended
	return p.updates(p.writable(everyone)), nil
}

// take adds a container of the runtime's list. known is its earlier state, or nil.
func (p *Policy) take(s *sandbox, c *api.Container, known *member) {
	s.make(c.GetName())
	if ended(c) {
		p.ran(s, c.GetName())
		return
	}
	r := c.GetLinux().GetResources()
	m := &member{id: c.GetId(), name: c.GetName(), pod: s, resources: r, mems: r.GetCpu().GetMems(),
		cgroup: c.GetLinux().GetCgroupsPath(), created: c.GetCreatedAt(), match: unplaced, life: inherited}
	m.readParts(c)
	if known != nil {
		m.life, m.unsure = known.life.after(list), known.unsure
		if known.pid == int(c.GetPid()) {
			m.pid, m.born, m.former = known.pid, known.born, known.former.Union(known.own)
		}
	} else {
		p.apply(m, placement.Restore, cpuset.Set{})
	}
	p.members[m.id] = m
	switch {
	case c.GetPid() != 0:
		p.began(m, int(c.GetPid()))
	case known != nil:
		p.apply(m, placement.ShownCreated, cpuset.Set{})
	}
}

// runs reports whether a sandbox's process may still exist.
func (p *Policy) runs(s *sandbox) bool {
	if s.pid == 0 {
		return true
	}
	_, err := p.cpusOf(&s.process)
	return !gone(err)
}

// over reports whether a sandbox of a runtime's list has ended; was is its earlier state, or nil. The list includes sandboxes that have
// ended, and has no state of them. Not all runtimes report their processes: CRI-O makes most sandboxes without one. So a sandbox without a
// process lives, unless something else says that it has ended. A later sweep looks for the pod's cgroup again. A start that this policy or
// an earlier one has permitted goes on in a sandbox that has ended.
func (p *Policy) over(s, was *sandbox) bool {
	if s.pid != 0 || p.some(s, p.hasProcess) || !p.mayBeOver(s, was) {
		return false
	}
	s.leaving = p.some(s, p.pending) // sweep ends the sandbox when the start is overdue
	return !s.leaving
}

// mayBeOver is over without what runs or starts in the sandbox.
func (p *Policy) mayBeOver(s, was *sandbox) bool {
	if was != nil && was.pid != 0 {
		if p.runs(was) {
			s.pid, s.born = was.pid, was.born
		}
		return s.pid == 0
	}
	return p.processes || p.lacks(s.uid) || p.cgroupGone(s) || p.replaced(s)
}

// replaced reports whether another sandbox of the same pod has a process. The kubelet makes one when the earlier one has ended.
func (p *Policy) replaced(s *sandbox) bool {
	for _, other := range p.sandboxes {
		if other != s && other.uid == s.uid && (other.pid != 0 || p.some(other, p.hasProcess)) {
			return true
		}
	}
	return false
}

// cgroupGone reports whether the kubelet has removed a pod's cgroup. If no cgroup of a pod was ever seen, the directory of cgroups may be
// another one.
func (p *Policy) cgroupGone(s *sandbox) bool {
	if p.PodQuota == nil || s.cgroup == "" {
		return false
	}
	_, err := p.PodQuota(s.cgroup, 0)
	p.seesCgroups = p.seesCgroups || err == nil
	return p.seesCgroups && errors.Is(err, fs.ErrNotExist)
}

// retain keeps a member that the runtime's list does not have, with its pod, as long as its process is there, or as the start takes that
// this policy has permitted.
func (p *Policy) retain(m *member, before map[string]*sandbox) {
	if p.members[m.id] != nil {
		return
	}
	_, _, _ = p.observe(m)
	switch {
	case !p.occupies(m):
		p.discard(m)
		return
	case p.hasProcess(m):
		p.apply(m, placement.Unlisted, cpuset.Set{})
	}
	p.Log.Warn("the runtime's list lacks a container that runs or starts; it keeps its place as long as it does", "container", m.title(),
		"id", m.id, "pid", m.pid)
	if now := p.sandboxes[m.pod.id]; now != nil {
		m.pod = now
	} else if was := before[m.pod.id]; was != nil {
		p.sandboxes[was.id] = was
		// Another sandbox of the pod may have had the allocations. Without a process, nothing else shows when the pod has ended.
		was.unread, was.leaving = true, was.pid == 0
	}
	m.pod.make(m.name)
	m.life = m.life.after(lack)
	p.members[m.id] = m
}

// everyone chooses all members, nobody none.
func everyone(*member, placement.Container) bool { return true }

func nobody(*member, placement.Container) bool { return false }

// pause is the delay of Follow after a failure. callTimeout is the time for a call of the kubelet or of berthd for which no event waits.
// sweeping is the interval of checks for ended processes. compareInterval is the interval of comparisons without an event.
const (
	pause           = time.Second
	callTimeout     = 5 * time.Second
	sweeping        = 2 * time.Second
	compareInterval = 30 * time.Second
)

// Follow updates running containers after changes of the ledger, above all of the shared CPUs,
// until the context ends.
func (p *Policy) Follow(ctx context.Context, runtime Updater) {
	reported := "" // the outage that is in the log
	for ctx.Err() == nil {
		err := p.follow(ctx, runtime, func() {
			if reported != "" {
				p.Log.Info("berthd is followed again")
			}
			reported = ""
		})
		if ctx.Err() != nil {
			return
		}
		if reported == "" {
			reported = err.Error()
			p.Log.Warn("berthd is not followed", "error", err)
		}
		p.mu.Lock()
		p.unreconciled = true
		p.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// follow runs until the connection to berthd is lost. It calls connected once berthd answers.
func (p *Policy) follow(ctx context.Context, runtime Updater, connected func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.Client.WaitReady(ctx); err != nil {
		return err
	}
	calling, called := context.WithTimeout(ctx, callTimeout)
	defer called()
	now, err := p.Client.Allocation().GetRevision(calling, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	stream, err := p.Client.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: now.GetRevision(),
		Types: slices.AppendSeq(slices.Clone(moves), maps.Keys(frees))})
	if err != nil {
		return err
	}
	p.followed.Store(true)
	p.established.Store(true)
	defer p.followed.Store(false)
	connected()
	p.room.Add(1) // events may have been lost before
	p.reportAgain()
	ended := make(chan error, 1)
	go func() {
		for {
			message, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			for _, e := range message.GetEvents() {
				if frees[eventType(e)] {
					p.room.Add(1)
				}
				if slices.Contains(moves, eventType(e)) {
					p.kick()
				}
			}
		}
	}()
	tick, often := time.NewTicker(compareInterval), time.NewTicker(sweeping)
	defer tick.Stop()
	defer often.Stop()
	for {
		if err := p.push(ctx, runtime); err != nil {
			return err
		}
		for looks := false; !looks; {
			select {
			case <-p.kicked:
				looks = true
			case <-tick.C:
				looks = true
			case <-often.C:
				looks = p.sweepNow(ctx)
			case err := <-ended:
				return err
			}
		}
	}
}

// moves are the events that may change the CPUs of a container that runs.
var moves = []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_SHARED_CPUS, allocationv1.EventType_EVENT_TYPE_CHANGED}

// push requests the updates that are due. mu must be free meanwhile: the runtime handles no event
// until UpdateContainers returns, and events need mu. CPUs that other calls send meanwhile are
// compared afterwards.
func (p *Policy) push(ctx context.Context, runtime Updater) error {
	for {
		updates, answered, err := p.look(ctx)
		if err != nil {
			return err
		}
		if len(updates) == 0 {
			p.tryAgain(ctx, runtime)
			return nil
		}
		p.Log.Debug("containers move", "containers", len(updates))
		failed, err := p.requestUpdates(ctx, runtime, updates)
		if p.landed(updates, failed, err, answered) {
			continue
		}
		return nil
	}
}

// look returns the updates that are due, and marks them as requested. answered are the members
// with CPUs in an earlier response. look must be quick, because events wait for mu.
func (p *Policy) look(ctx context.Context) (updates []*api.ContainerUpdate, answered []*member, err error) {
	p.callKubelet(ctx)
	ctx, cancel := p.within(ctx, followShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep(ctx)
	if err := p.reconcile(ctx); err != nil {
		return nil, nil, err
	}
	p.podQuotas()
	for _, m := range p.live() {
		_, _, _ = p.observe(m) // a member that cannot be read keeps its possible CPUs
		if !m.answered.IsEmpty() {
			answered = append(answered, m)
		}
	}
	p.reportMemory(ctx)
	return p.requested(), answered, nil
}

// requested returns the updates that are due, and marks them as requested.
func (p *Policy) requested() (updates []*api.ContainerUpdate) {
	if !p.requests {
		return nil // the next answers carry them
	}
	for _, w := range p.writable(everyone) {
		m := p.members[w.ID]
		p.sendRequested(m, w.CPUs)
		updates = append(updates, update(m, w.CPUs))
	}
	return updates
}

// sweepNow calls sweep, and reports whether it found ended members.
func (p *Policy) sweepNow(ctx context.Context) bool {
	ctx, cancel := p.within(ctx, followShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sweep(ctx)
}

// sweep releases resources of pods that ended without an event. A restarted containerd sends no
// event for the end of an older sandbox. A created container without a process gets none after
// its sandbox has ended. The caller holds mu.
func (p *Policy) sweep(ctx context.Context) (found bool) {
	defer func() {
		if found {
			p.room.Add(1)
		}
	}()
	p.expire(ctx)
	alive := map[*sandbox]bool{}
	for _, m := range p.all() {
		if !p.hasProcess(m) {
			continue
		}
		if _, _, _ = p.observe(m); p.may(m) {
			alive[m.pod] = true
			continue
		}
		found = true
		if m.life.unlisted() {
			p.unbind(ctx, m)
			p.forget(m)
		}
	}
	for _, s := range p.sandboxes {
		gone := s.pid == 0 && p.cgroupGone(s)
		switch {
		case alive[s]:
		case s.leaving:
			p.leave(ctx, s)
			found = found || !s.leaving
		case s.pid != 0 && !p.runs(s), gone:
			p.leave(ctx, s)
			found = true
		}
	}
	return found
}

// landed records the results of updates, and reports whether push must compare again.
func (p *Policy) landed(updates, failed []*api.ContainerUpdate, err error, answered []*member) (again bool) {
	refused := map[string]bool{}
	for _, u := range failed {
		refused[u.GetContainerId()] = true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range answered { // the runtime had applied their responses before
		if !m.answered.IsEmpty() {
			p.outcome(m, m.answered, nil)
			m.answered = cpuset.Set{}
		}
	}
	var names []string
	for _, u := range updates {
		m := p.members[u.GetContainerId()]
		if m == nil || m.pushed.IsEmpty() {
			continue
		}
		sent, became := m.pushed, error(nil)
		m.pushed = cpuset.Set{}
		switch {
		case refused[m.id]:
			became = errRefused
		case err != nil && len(failed) == 0:
			became = err
		}
		if became != nil {
			names = append(names, m.title())
		} else if m.moved && u.GetLinux().GetResources().GetCpu().GetMems() == m.mems {
			m.moved, m.reportAt = false, time.Time{} // the kernel has moved the memory, or tryAgain lets it try again
		}
		again = again || !m.answered.IsEmpty()
		p.outcome(m, sent, became)
	}
	if len(names) == 0 {
		p.failing = ""
		return again
	}
	// One line for a failure, however often it is tried.
	level, text := slog.LevelDebug, fmt.Sprint(names, err)
	if text != p.failing {
		level, p.failing = slog.LevelWarn, text
	}
	p.Log.Log(context.Background(), level, "update containers failed", "containers", names, "error", err)
	p.kickLater()
	return false
}

// compareAgain lets the next pass compare a member with the ledger.
func (p *Policy) compareAgain(m *member) { m.match, p.incomplete = max(m.match, due), true }

// kickLater lets Follow compare after a pause. The caller holds mu.
func (p *Policy) kickLater() { p.kickIn(&p.retry, pause) }

// kickIn lets Follow compare after some time. The caller holds mu.
func (p *Policy) kickIn(timer **time.Timer, d time.Duration) {
	if *timer == nil {
		*timer = time.AfterFunc(d, p.kick)
	} else {
		(*timer).Reset(d)
	}
}
