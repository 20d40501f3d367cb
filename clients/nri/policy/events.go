package policy

import (
	"context"
	"fmt"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/refusal"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
	"github.com/berthd/berth/managers/workload"
)

// RunPodSandbox admits a pod whose specification is known. An error prevents the start of the
// sandbox.
func (p *Policy) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	s := p.sandbox(pod)
	if p.gate.released {
		return nil
	}
	err := p.placer.admitPod(ctx, s)
	if err == nil {
		return nil
	}
	p.log.Log(ctx, level(err), "a pod was not admitted", "pod", s.namespace+"/"+s.name, "uid", s.uid, "error", err)
	if p.gate.passes(s) {
		return nil // CreateContainer tries again, and decides
	}
	delete(p.node.sandboxes, s.id)
	return refusal.New("admit the pod", err)
}

// StopPodSandbox releases a pod's allocations, because its containers have ended.
func (p *Policy) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	if s := p.node.sandboxes[pod.GetId()]; s != nil {
		p.ends.leave(ctx, s)
	}
	return nil
}

// RemovePodSandbox deletes a pod.
func (p *Policy) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	if s := p.node.sandboxes[pod.GetId()]; s != nil {
		if p.ends.leave(ctx, s); s.leaving {
			p.agenda.kick() // sweep deletes the sandbox
		}
	}
	return nil
}

// CreateContainer allocates a container's resources, and moves other containers off its CPUs.
func (p *Policy) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment,

	[]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if p.gate.released {
		return nil, nil, nil
	}
	m := &member{id: c.GetId(), name: c.GetName(), pod: p.sandbox(pod), resources: c.GetLinux().GetResources(),
		cgroup: c.GetLinux().GetCgroupsPath(), created: p.now().UnixNano(), life: made}
	m.readParts(c)
	m.pod.leaving = false
	log, room, before := p.log.With("container", m.title(), "id", m.id), p.agenda.room.Load(), *m
	cpus, adjust, err := p.placer.create(ctx, m)
	switch {
	case err == nil:
		log.Debug("a container is made", "cpus", cpus.String(), "mems", m.mems, "own", !m.own.IsEmpty())
	case p.gate.passes(m.pod):
		log.Warn("a container has no allocation and may start on the shared CPUs", "cpus", p.view.shared.String(), "error", err)
		*m = before
		m.match, m.room = denied, room
		if adjust = (&api.ContainerAdjustment{}); p.gate.standby == nil {
			cpus = p.view.spare()
		}
		p.agenda.unreconciled = p.agenda.unreconciled || undecided(err) || ctx.Err() != nil
		if !cpus.IsEmpty() {
			adjust.SetLinuxCPUSetCPUs(cpus.String())
		}
	default:
		log.Log(ctx, level(err), "a container was not allocated", "error", err)
		return nil, nil, refusal.New("place container "+m.name, err)
	}
	p.ends.replace(m)
	p.tracks.introduce(m, cpus)
	writes := p.writer.clear(m)
	off := map[string]bool{}
	if p.runtime.StartsAnyway && !m.own.IsEmpty() {
		off = p.tracks.movedOff(m, writes)
		if err := p.tracks.vacateBut(m, off); err != nil { // an error carries no updates, so none is sent
			log.Debug("a container is not made yet", "error", err)
			p.tracks.apply(m, placement.Ended, cpuset.Set{})
			p.tracks.discard(m)
			return nil, nil, refusal.New("create container "+m.name, err)
		}
	}
	if m.own.IsEmpty() {
		p.agenda.kick() // other members may have to move; the new one does not wait for them
	}
	updates := p.writer.response(writes)
	for _, u := range updates {
		u.IgnoreFailure = !off[u.GetContainerId()]
	}
	return adjust, updates, nil
}

// ended reports whether the runtime says that a container has no process any more.
func ended(c *api.Container) bool { return c.GetState() == api.ContainerState_CONTAINER_STOPPED }

// PostCreateContainer makes a container comparable. The runtime has stored it now, so updates of
// it have an effect.
func (p *Policy) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	if m := p.known(pod, c); m != nil && !m.life.over() {
		p.tracks.apply(m, placement.ShownCreated, cpuset.Set{})
		p.agenda.kick()
	}
	return nil
}

// StopContainer reports to berthd that a container has exited. Its answer can carry updates of other containers.
func (p *Policy) StopContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if m := p.node.members[c.GetId()]; m != nil {
		p.ends.unbind(ctx, m)
	}
	return p.writer.answer(nil, nobody), nil
}

// RemoveContainer deletes a container.
func (p *Policy) RemoveContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	ctx, end := p.begin(ctx)
	defer end()
	if m := p.node.members[c.GetId()]; m != nil {
		p.ends.unbind(ctx, m)
		if m.pid == 0 {
			p.tracks.apply(m, placement.Ended, cpuset.Set{}) // the runtime has removed it
		}
		p.tracks.forget(m)
		p.agenda.kick() // it may have been the pod's last
	}
	return nil
}

// sandbox gives the pod of an event; the caller holds mu.
func (p *Policy) sandbox(pod *api.PodSandbox) *sandbox {
	s := p.node.sandboxes[pod.GetId()]
	if s == nil {
		s = newSandbox(pod)
		p.node.told++
		s.told = p.node.told
		s.unread = p.view.ledger.pods == nil || p.agenda.unreconciled || p.view.ledger.loose[s.uid]
		for _, other := range p.node.sandboxes {
			if other.uid == s.uid {
				s.form, s.unread = other.form, s.unread || other.unread
			}
		}
		p.node.sandboxes[s.id] = s
		_, err := maxMove(pod)
		if text := s.annotations[workload.MovableAnnotation]; err == nil {
			if _, valid := workload.ParseMovable(text); !valid {
				err = fmt.Errorf("annotation %s is %.40q: expected never, within-node or anywhere; the pod is not moved",
					workload.MovableAnnotation, text)
			}
		}
		if err != nil {
			p.log.Warn("an annotation of a pod is not valid", "pod", s.namespace+"/"+s.name, "error", err)
		}
	}
	if pid := int(pod.GetPid()); pid != 0 && pid != s.pid {
		s.pid, s.born = pid, 0
		p.kernel.runs(s) // it is this process from now on
	}
	return s
}

// PostUpdatePodSandbox is the event of a resize of a pod. It has only sums over the containers, which berthd cannot use.
func (p *Policy) PostUpdatePodSandbox(ctx context.Context, _ *api.PodSandbox) error {
	_, end := p.begin(ctx)
	defer end()
	p.quotas.returns()
	return nil
}

// UpdateContainer resizes a container in berthd before the runtime carries out the update. For a
// resize in place a kubelet sends one such update for each container, for cpu and for memory
// (KEP-1287). After an error the container stays as it is. So it does while it cannot be compared with the ledger. CPU sets and the
// missing quota on exclusive CPUs are not part of a size.
func (p *Policy) UpdateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container,
	r *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if p.gate.released {
		return nil, nil
	}
	m := p.known(pod, c)
	if m == nil {
		return nil, nil
	}
	// The runtime may have failed to apply an earlier size, so its current values count.
	now := c.GetLinux().GetResources()
	if now == nil {
		now = m.resources
	}
	wanted, own, room := changed(now, r), p.tracks.ownOf(m), p.agenda.room.Load()
	if p.gate.standby != nil {
		m.resources = wanted
		return nil, nil
	}
	if m.requested(wanted) != m.requested(m.resources) || m.asked != nil { // berthd may have lost what the runtime has not confirmed
		if err := p.placer.resize(ctx, m, wanted); err != nil {
			p.sizes.logRefused(ctx, m, wanted, err)
			if !p.gate.passes(m.pod) {
				return nil, refusal.New("resize container "+m.name, err)
			}
			if m.match == compared && m.key != "" {
				m.match, m.room = denied, room
			}
		}
		m.resources = wanted
	}
	p.sizes.ask(m, now)
	p.quotas.returns()
	if m.match == unplaced {
		return append(p.writer.answer(m, nobody), p.stay(m, r)...), nil
	}
	// The runtime applies this update after it has continued with other events. CPUs and memory
	// nodes in this update could therefore replace those of a later update. Without them the
	// container keeps the last ones that were sent to the runtime, and Follow sends others.
	// An update by Follow adds CPUs, when others have left them.
	mine := p.tracks.grantable(m, m.own.Intersect(own))
	u := updateCPUs(m, mine)
	if !mine.IsEmpty() {
		p.tracks.send(m, mine)
	}
	if m.own != own || m.moved {
		p.agenda.kick()
	}
	if r.GetCpu().GetCpus() != "" && m.own.IsEmpty() {
		t, _ := p.tracks.state(m)
		u = updateCPUs(m, t.WantedCPUs)
		p.tracks.send(m, t.WantedCPUs)
	}
	updates := p.writer.answer(m, nobody)
	if u.GetLinux() != nil { // an empty one would make the runtime change nothing
		updates = append(updates, u)
	}
	return updates, nil
}

// PostUpdateContainer is the event of an update that the runtime has carried out. It may be of a resize that was overdue.
func (p *Policy) PostUpdateContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	m := p.node.members[c.GetId()]
	if m == nil {
		return nil
	}
	now := c.GetLinux().GetResources()
	if m.asked == nil && now != nil && m.requested(now) != m.requested(m.resources) {
		p.sizes.resizedTo(m, now)
	}
	m.asked = nil
	return nil
}

// stay answers an update of a member whose CPUs in the ledger are not known. It keeps those that it may run on, and its quota is
// compared later.
func (p *Policy) stay(m *member, r *api.LinuxResources) []*api.ContainerUpdate {
	m.moved = true
	p.agenda.kick()
	t, _ := p.tracks.state(m)
	if r.GetCpu().GetCpus() == "" || t.Anywhere || t.PossibleCPUs.IsEmpty() {
		return nil
	}
	u := &api.ContainerUpdate{}
	u.SetContainerId(m.id)
	u.SetLinuxCPUSetCPUs(t.PossibleCPUs.String())
	p.tracks.send(m, t.PossibleCPUs)
	return []*api.ContainerUpdate{u}
}

// Configure is the runtime's first call on a connection. It returns the events that the runtime's version of NRI has. An error means
// that the runtime cannot be used.
func (p *Policy) Configure(_ context.Context, _, runtime, version string) (api.EventMask, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.runtime.Configure(runtime, version)
}

// known returns the member of an event; nil if the container has ended, or nothing is placed any more. A container that no earlier
// event has told of is added, and may run anywhere until it is compared with the ledger: it was created while this policy was not
// connected, or while it synchronized, of which no plugin is told (containerd#13698, cri-o#10090), or in the meantime another one of
// its name was created.
func (p *Policy) known(pod *api.PodSandbox, c *api.Container) *member {
	if m := p.node.members[c.GetId()]; m != nil || p.gate.released || !p.node.synchronized || ended(c) {
		return m
	}
	_, told := p.node.sandboxes[pod.GetId()]
	s := p.sandbox(pod)
	s.unfound = s.unfound || !told
	p.take(s, c, nil)
	p.agenda.incomplete = true
	p.agenda.kick()
	return p.node.members[c.GetId()]
}

// StartContainer binds a container in berthd. With an error
// the runtime does not start it, for example if another container may still be on its CPUs.
func (p *Policy) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	ctx, end := p.begin(ctx)
	defer end()
	if p.gate.released {
		return nil
	}
	m := p.known(pod, c)
	if m == nil {
		return nil
	}
	err := p.startable(ctx, m)
	if err == nil || p.runtime.StartsAnyway {
		m.life = m.life.after(permit)
		p.tracks.apply(m, placement.Allow, cpuset.Set{})
	}
	switch {
	case err == nil:
		return nil
	case p.runtime.StartsAnyway:
		p.log.Warn("a container starts, although it is not ready to: the runtime starts what is refused", "container", m.title(), "id", m.id,
			"runtime", p.runtime.Name, "error", err)
		return refusal.New("start container "+m.name, err)
	}
	if m.pid == 0 {
		m.life = m.life.after(refuse)
		p.ends.unbindID(ctx, m)
	}
	p.log.Debug("a container does not start yet", "container", m.title(), "id", m.id, "error", err)
	return refusal.New("start container "+m.name, err)
}

// startable binds a member in berthd, and returns why the member must not start. What berthd refuses or does not answer may be let pass,
// and not that another container is in the way, or that the member's memory nodes are not its own any more.
func (p *Policy) startable(ctx context.Context, m *member) error {
	if p.gate.standby != nil {
		return nil
	}
	mems, err := p.bind(ctx, m)
	if err != nil && !p.gate.passes(m.pod) {
		return err
	}
	if err := p.reporter.inNodes(m, mems); err != nil {
		return err
	}
	err = p.tracks.vacate(m)
	if at, _ := p.tracks.state(m); at.Anywhere && m.own.IsEmpty() && p.view.shared.IsEmpty() && p.gate.passes(m.pod) {
		return nil // the next container of its name would be in the way, too
	}
	return err
}

// bind gives an unplaced member its place, and binds it in berthd. before are its memory nodes of the place.
func (p *Policy) bind(ctx context.Context, m *member) (before string, err error) {
	if err = p.gate.bar(); err == nil && m.match == unplaced {
		err = p.placer.placeNow(ctx, m)
	}
	if before = m.mems; err == nil {
		err = m.bind(ctx, p.client)
	}
	return before, err
}

// PostStartContainer notes the process, and where it runs: it was made with the CPUs that
// the container had when the runtime began to start it.
func (p *Policy) PostStartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	if p.gate.released {
		return nil
	}
	if m := p.known(pod, c); m != nil {
		p.tracks.began(m, int(c.GetPid()))
		if m.key != "" && !m.bound { // its start was let pass, or could not be refused
			p.agenda.compareAgain(m)
		}
		p.agenda.kick()
	}
	return nil
}
