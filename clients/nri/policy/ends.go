package policy

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/abilities"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// ends releases what ended containers and pods had, as soon as nothing of them runs or may start.
type ends struct {
	*common
	tracks  *tracks
	kernel  *kernel
	runtime *abilities.Runtime
	awaited *awaitedPods
	quotas  *quotas
}

// sweep releases resources of pods that ended without an event. A restarted containerd sends no
// event for the end of an older sandbox. A created container without a process gets none after
// its sandbox has ended. The caller holds mu.
func (e *ends) sweep(ctx context.Context) (found bool) {
	defer func() {
		if found {
			e.agenda.room.Add(1)
		}
	}()
	e.expire(ctx)
	alive := map[*sandbox]bool{}
	for _, m := range e.node.all() {
		if !e.tracks.hasProcess(m) {
			continue
		}
		if _, _, _ = e.tracks.observe(m); e.tracks.may(m) {
			alive[m.pod] = true
			continue
		}
		found = true
		if m.life.unlisted() {
			e.unbind(ctx, m)
			e.tracks.forget(m)
		}
	}
	for _, s := range e.node.sandboxes {
		gone := s.pid == 0 && e.quotas.cgroupGone(s)
		switch {
		case alive[s]:
		case s.leaving:
			e.leave(ctx, s)
			found = found || !s.leaving
		case s.pid != 0 && !e.kernel.runs(s), gone:
			e.leave(ctx, s)
			found = true
		}
	}
	return found
}

// leave deletes a sandbox, and releases its pod's allocations, unless the pod has another one. While processes of
// the pod still run, or the start of one may be in progress, nothing is released, and sweep calls leave again.
func (e *ends) leave(ctx context.Context, s *sandbox) {
	for _, m := range e.node.all() {
		if m.pod == s && !e.tracks.pending(m) {
			e.unbind(ctx, m)
		}
	}
	if e.node.some(s, func(m *member) bool { return e.tracks.hasProcess(m) || e.tracks.pending(m) }) {
		s.leaving = true
		return
	}
	e.log.Debug("a pod has ended", "pod", s.namespace+"/"+s.name)
	s.leaving = false
	e.drop(s)
	for _, other := range e.node.sandboxes {
		if other.uid == s.uid {
			other.inherit(s)
			return
		}
	}
	e.release(ctx, s, func(string, part) bool { return true })
	if s.form == whole {
		e.remove(ctx, s, s.uid)
	}
	s.form = unadmitted
}

// unbind reports to berthd that a container has exited.
func (e *ends) unbind(ctx context.Context, m *member) {
	if m.life.over() {
		return
	}
	m.life, m.ended = m.life.after(finish), e.now()
	e.agenda.room.Add(1)
	e.tracks.assign(m, cpuset.Set{}, cpuset.Set{}) // its CPUs may belong to another container now
	e.tracks.end(m)
	s := m.pod
	again := e.node.some(s, func(o *member) bool { return o.name == m.name && !o.life.over() })
	if _, apart := s.names[m.name]; apart && m.key != s.uid && !again {
		s.names[m.name] = kept
	}
	e.unbindID(ctx, m)
}

// unbindID makes berthd forget the id of a member that has no process.
func (e *ends) unbindID(ctx context.Context, m *member) {
	if !m.bound {
		return
	}
	if _, err := e.client.PostStopContainer(ctx, m.id); err != nil {
		// berthd deletes the id with the pod.
		e.log.Warn("report a container's exit to berthd failed", "container", m.title(), "id", m.id, "error", err)
		return
	}
	m.bound = false
}

// release removes the separately admitted containers that chosen selects. A removal that fails is
// repeated by the next list of living pods.
func (e *ends) release(ctx context.Context, s *sandbox, chosen func(name string, state part) bool) (some bool) {
	for name, state := range s.names {
		if chosen(name, state) {
			e.remove(ctx, s, s.key(name))
			delete(s.names, name)
			some = true
		}
	}
	return some
}

func (e *ends) remove(ctx context.Context, s *sandbox, key string) {
	if _, err := e.client.RemovePod(ctx, key); err != nil {
		e.log.Warn("release an allocation failed", "pod", s.namespace+"/"+s.name, "uid", key, "error", err)
		e.awaited.removalFailed(key)
		e.agenda.unreconciled = true
		e.agenda.kick()
	}
}

// ending describes stopped members whose processes still run on exclusive CPUs.
func (e *ends) ending() (out []string) {
	for _, m := range e.node.all() {
		if m.life.over() && !m.own.IsEmpty() && e.tracks.may(m) {
			out = append(out, fmt.Sprintf("CPUs %s are held by container %s, which is ending", m.own, m.title()))
		}
	}
	return out
}

// drop deletes a pod that has ended.
func (e *ends) drop(s *sandbox) {
	delete(e.node.sandboxes, s.id)
	for _, m := range e.node.all() {
		if m.pod == s {
			e.tracks.discard(m)
		}
	}
}

// replace adds a member. It deletes the members with the same name that have no process and get none.
func (e *ends) replace(m *member) {
	for _, other := range e.node.members {
		if other.pod == m.pod && other.name == m.name && other.pid == 0 && !e.tracks.pending(other) {
			e.tracks.discard(other)
		}
	}
	e.node.members[m.id] = m
	m.pod.make(m.name)
}

// over reports whether a sandbox of a runtime's list has ended; was is its earlier state, or nil. The list includes sandboxes that have
// ended, and has no state of them. Not all runtimes report their processes: CRI-O makes most sandboxes without one. So a sandbox without a
// process lives, unless something else says that it has ended. A later sweep looks for the pod's cgroup again. A start that this policy or
// an earlier one has permitted goes on in a sandbox that has ended.
func (e *ends) over(s, was *sandbox) bool {
	if s.pid != 0 || e.node.some(s, e.tracks.hasProcess) || !e.mayBeOver(s, was) {
		return false
	}
	s.leaving = e.node.some(s, e.tracks.pending) // sweep ends the sandbox when the start is overdue
	return !s.leaving
}

// mayBeOver is over without what runs or starts in the sandbox.
func (e *ends) mayBeOver(s, was *sandbox) bool {
	if was != nil && was.pid != 0 {
		if e.kernel.runs(was) {
			s.pid, s.born = was.pid, was.born
		}
		return s.pid == 0
	}
	return e.runtime.Processes || e.awaited.lacks(s.uid) || e.quotas.cgroupGone(s) || e.tracks.replaced(s)
}

// dropReplaced deletes the containers of a list that have no process and get none, if a later one of the same name runs. A
// kubelet that was interrupted during a creation creates another container and never starts the
// earlier one.
func (e *ends) dropReplaced(listed []*api.Container) {
	since := map[string]time.Time{}
	for _, c := range listed {
		since[c.GetId()] = time.Unix(0, c.GetCreatedAt())
	}
	for _, m := range e.node.all() {
		// Its start was requested before the later one was created.
		over := func(o *member) bool {
			at := since[o.id]
			return !e.tracks.pending(m) || m.life == inherited && at.After(since[m.id]) && e.now().Sub(at) >= placement.StartTime
		}
		if m.pid == 0 && e.node.some(m.pod, func(o *member) bool { return o.name == m.name && e.tracks.hasProcess(o) && over(o) }) {
			e.tracks.discard(m)
		}
	}
}

// startOverdue ends a start that takes too long. Of a container that has been replaced, that the runtime's list lacks or that the
// runtime has not stored, nothing is left to start. If the runtime stores it later, nothing is known of it: no update has reached it.
func (e *ends) startOverdue(ctx context.Context, m *member) {
	t, _ := e.tracks.state(m)
	unstored := m.life == made && t.Phase == placement.Starting
	if unstored && e.runtime.StartsAnyway {
		return // its start could not be refused later; if it is not made in the end, another one of its name replaces it, or its pod ends
	}
	e.log.Warn("a created container has not started; its CPUs no longer block other containers", "container", m.title(), "id", m.id,
		"after", placement.StartTime)
	e.tracks.apply(m, placement.StartOverdue, cpuset.Set{})
	if unstored || m.life.unlisted() || e.node.some(m.pod, func(o *member) bool { return o.name == m.name && o != m && !o.life.over() }) {
		e.unbindID(ctx, m)
		e.tracks.discard(m)
	}
}

// ending is how long a container without a known process may take to end after the runtime has
// reported its end.
const ending = 2 * time.Second

// expire ends overdue members: starts that take too long, and ended containers that never had a
// visible process.
func (e *ends) expire(ctx context.Context) {
	now := e.now()
	for _, m := range e.tracks.overdue() {
		e.startOverdue(ctx, m)
	}
	for _, m := range e.node.all() {
		if m.life.over() && m.pid == 0 && now.Sub(m.ended) >= ending {
			e.tracks.apply(m, placement.KernelEmpty, cpuset.Set{})
		}
	}
}
