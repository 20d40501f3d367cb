package policy

import (
	"context"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// Synchronize takes over the running pods and containers. It reports the living pods to berthd,
// allocates for containers without an allocation, and corrects drifted CPUs. If berthd is
// unavailable, Follow does this later. Synchronize itself must be quick: after a timeout the
// runtime continues without the plugin.
func (p *Policy) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	asking, asked := p.within(ctx, followShare)
	connecting := p.awaited.hear(asking)
	asked()
	ctx, end := p.begin(ctx)
	defer end()
	if p.gate.released {
		return nil, nil
	}
	p.awaited.connecting = connecting
	defer func() { p.awaited.connecting = nil }()
	p.node.synchronized, p.view.ledger = true, listing{}
	sandboxes, members := p.node.sandboxes, p.node.members
	p.node.sandboxes, p.node.members = map[string]*sandbox{}, map[string]*member{}
	for _, pod := range pods {
		s := p.sandbox(pod)
		s.told = 0
		if was := sandboxes[s.id]; was != nil {
			s.carry(was)
		}
		s.unfound, s.unread = true, true // reconcile searches for its specification and its allocations
	}
	for _, c := range containers {
		s := p.node.sandboxes[c.GetPodSandboxId()]
		if s == nil {
			if s = sandboxes[c.GetPodSandboxId()]; s == nil || c.GetState() == api.ContainerState_CONTAINER_STOPPED {
				continue
			}
			// The list lacks the sandbox of a container that it has.
			p.node.sandboxes[s.id] = s
			s.unread, s.leaving = true, s.pid == 0
		}
		p.take(s, c, members[c.GetId()])
	}
	p.ends.dropReplaced(containers)
	for _, pod := range pods {
		if s := p.node.sandboxes[pod.GetId()]; s != nil && p.ends.over(s, sandboxes[s.id]) { // nil if it is there twice
			p.ends.drop(s)
		}
	}
	for _, m := range members {
		p.retain(m, sandboxes)
	}
	for _, was := range sandboxes {
		// The pod keeps what a container has had that will start again. Without its process, sweep finds that it has ended.
		if p.node.sandboxes[was.id] == nil && was.pid != 0 && p.kernel.runs(was) {
			p.node.sandboxes[was.id], was.unread = was, true
		}
	}
	p.log.Info("synchronized with the runtime", "pods", len(pods), "containers", len(p.node.members))
	p.agenda.unreconciled = true
	if err := p.placer.reconcile(ctx); err != nil {
		p.log.Warn("running containers stay as they are for now", "error", err)
		p.view.estimateShared()
		p.agenda.later()
		return nil, nil
	}
	p.agenda.kick() // sweep finds the members that have ended
	return p.writer.response(p.tracks.due(p.view.shared, everyone)), nil
}

// take adds a container of the runtime's list. known is its earlier state, or nil.
func (p *Policy) take(s *sandbox, c *api.Container, known *member) {
	s.make(c.GetName())
	if ended(c) {
		p.node.ran(s, c.GetName())
		return
	}
	r := c.GetLinux().GetResources()
	m := &member{id: c.GetId(), name: c.GetName(), pod: s, resources: r, mems: r.GetCpu().GetMems(),
		cgroup: c.GetLinux().GetCgroupsPath(), created: c.GetCreatedAt(), comparison: comparison{match: unplaced}, life: inherited}
	m.readParts(c)
	if known != nil {
		m.life, m.unsure = known.life.after(list), known.unsure
		if known.match == denied && known.key == "" {
			m.match, m.room = denied, known.room // it runs on shared CPUs, even if these are as many as it requests
		}
		if known.pid == int(c.GetPid()) {
			m.pid, m.born, m.former = known.pid, known.born, known.former.Union(known.own)
		}
	} else {
		p.tracks.apply(m, placement.Restore, cpuset.Set{})
	}
	p.node.members[m.id] = m
	switch {
	case c.GetPid() != 0:
		p.tracks.began(m, int(c.GetPid()))
	case known != nil:
		p.tracks.apply(m, placement.ShownCreated, cpuset.Set{})
	}
}

// retain keeps a member that the runtime's list does not have, with its pod, as long as its process is there, or as the start takes that
// this policy has permitted.
func (p *Policy) retain(m *member, before map[string]*sandbox) {
	if p.node.members[m.id] != nil {
		return
	}
	_, _, _ = p.tracks.observe(m)
	switch {
	case !p.tracks.occupies(m):
		p.tracks.discard(m)
		return
	case p.tracks.hasProcess(m):
		p.tracks.apply(m, placement.Unlisted, cpuset.Set{})
	}
	p.log.Warn("the runtime's list lacks a container that runs or starts; it keeps its place as long as it does", "container", m.title(),
		"id", m.id, "pid", m.pid)
	if now := p.node.sandboxes[m.pod.id]; now != nil {
		m.pod = now
	} else if was := before[m.pod.id]; was != nil {
		p.node.sandboxes[was.id] = was
		// Another sandbox of the pod may have had the allocations. Without a process, nothing else shows when the pod has ended.
		was.unread, was.leaving = true, was.pid == 0
	}
	m.pod.make(m.name)
	m.life = m.life.after(lack)
	p.node.members[m.id] = m
}
