package policy

import (
	"context"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/placement"
)

// pending reports whether a member may get its first process without another event of the runtime. The kubelet may have given up the
// start, and may have made another container of that name: the runtime completes the start nevertheless.
func (p *Policy) pending(m *member) bool {
	c, known := p.state(m)
	begun := c.Phase == placement.Starting || c.Phase == placement.Created
	return known && begun && m.pid == 0 && m.life.startable()
}

// occupies reports whether a member has a process, or may get one because this policy has permitted its start.
func (p *Policy) occupies(m *member) bool {
	return p.hasProcess(m) || m.life != inherited && p.pending(m)
}

// known returns the member of an event; nil if the container has ended, or nothing is placed any more. A container that no earlier
// event has told of is added, and may run anywhere until it is compared with the ledger: it was created while this policy was not
// connected, or while it synchronized, of which no plugin is told (containerd#13698, cri-o#10090), or in the meantime another one of
// its name was created.
func (p *Policy) known(pod *api.PodSandbox, c *api.Container) *member {
	if m := p.members[c.GetId()]; m != nil || p.released || !p.synchronized || ended(c) {
		return m
	}
	_, told := p.sandboxes[pod.GetId()]
	s := p.sandbox(pod)
	s.unfound = s.unfound || !told
	p.take(s, c, nil)
	p.incomplete = true
	p.kick()
	return p.members[c.GetId()]
}

// StartContainer binds a container in berthd. With an error
// the runtime does not start it, for example if another container may still be on its CPUs.
func (p *Policy) StartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	ctx, end := p.begin(ctx)
	defer end()
	if p.released {
		return nil
	}
	m := p.known(pod, c)
	if m == nil {
		return nil
	}
	err := p.startable(ctx, m)
	if err == nil || p.passes(m.pod) {
		m.life = m.life.after(permit)
		p.apply(m, placement.Allow, cpuset.Set{})
		return nil
	}
	if m.pid == 0 {
		m.life = m.life.after(refuse)
		p.unbindID(ctx, m)
	}
	p.Log.Debug("a container does not start yet", "container", m.title(), "id", m.id, "error", err)
	return refusal("start container "+m.name, err)
}

// startable binds a member in berthd, and returns why the member must not start.
func (p *Policy) startable(ctx context.Context, m *member) error {
	if err := p.bar(); err != nil {
		return err
	}
	if m.match == unplaced {
		if err := p.placeNow(ctx, m); err != nil {
			return err
		}
	}
	mems := m.mems
	if err := m.bind(ctx, p.Client); err != nil {
		return err
	}
	if err := p.inNodes(m, mems); err != nil {
		return err
	}
	return p.vacate(m)
}

// placeNow compares an unplaced member with the ledger for an event that cannot wait for reconcile.
func (p *Policy) placeNow(ctx context.Context, m *member) error {
	if m.pod.unfound {
		if err := p.search(ctx, m.pod); err != nil {
			return err
		}
	}
	if err := p.restore(ctx, m); err != nil {
		return err
	}
	return p.want(ctx)
}

// unbindID makes berthd forget the id of a member that has no process.
func (p *Policy) unbindID(ctx context.Context, m *member) {
	if !m.bound {
		return
	}
	if _, err := p.Client.PostStopContainer(ctx, m.id); err != nil {
		// berthd deletes the id with the pod.
		p.Log.Warn("report a container's exit to berthd failed", "container", m.title(), "id", m.id, "error", err)
		return
	}
	m.bound = false
}

// PostStartContainer notes the process, and where it runs: it was made with the CPUs that
// the container had when the runtime began to start it.
func (p *Policy) PostStartContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	if p.released {
		return nil
	}
	if m := p.known(pod, c); m != nil {
		p.began(m, int(c.GetPid()))
		p.kick()
	}
	return nil
}

// isReplaced reports whether another member of its name was created later, or has a process while the member has none, in whatever
// sandbox of the pod. The kubelet does not resize the member any more, and its size is not that of the container.
func (p *Policy) isReplaced(m *member) bool {
	for _, o := range p.members {
		if o != m && o.pod.uid == m.pod.uid && o.name == m.name && (o.created > m.created || m.pid == 0 && p.hasProcess(o)) {
			return true
		}
	}
	return false
}

// dropReplaced deletes the containers of a list that have no process and get none, if a later one of the same name runs. A
// kubelet that was interrupted during a creation creates another container and never starts the
// earlier one.
func (p *Policy) dropReplaced(listed []*api.Container) {
	since := map[string]time.Time{}
	for _, c := range listed {
		since[c.GetId()] = time.Unix(0, c.GetCreatedAt())
	}
	for _, m := range p.all() {
		// Its start was requested before the later one was created.
		over := func(o *member) bool {
			at := since[o.id]
			return !p.pending(m) || m.life == inherited && at.After(since[m.id]) && p.Now().Sub(at) >= placement.StartTime
		}
		if m.pid == 0 && p.some(m.pod, func(o *member) bool { return o.name == m.name && p.hasProcess(o) && over(o) }) {
			p.discard(m)
		}
	}
}

// startOverdue ends a start that takes too long. Of a container that has been replaced, that the runtime's list lacks or that the
// runtime has not stored, nothing is left to start. If the runtime stores it later, nothing is known of it: no update has reached it.
func (p *Policy) startOverdue(ctx context.Context, m *member) {
	p.Log.Warn("a created container has not started; its CPUs no longer block other containers", "container", m.title(), "id", m.id,
		"after", placement.StartTime)
	t, _ := p.state(m)
	unstored := m.life == made && t.Phase == placement.Starting
	p.apply(m, placement.StartOverdue, cpuset.Set{})
	if unstored || m.life.unlisted() || p.some(m.pod, func(o *member) bool { return o.name == m.name && o != m && !o.life.over() }) {
		p.unbindID(ctx, m)
		p.discard(m)
	}
}
