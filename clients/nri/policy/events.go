package policy

import (
	"context"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/berth"
)

// RunPodSandbox admits a pod whose specification is known. An error keeps its
// sandbox from running.
func (p *Policy) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sandbox(pod)
	err := p.barred
	if err == nil {
		s.spec, err = p.find(s)
	}
	if err == nil {
		err = p.enter(ctx, s)
	}
	if err == nil {
		return nil
	}
	p.Log.Warn("a pod gets no place", "pod", s.namespace+"/"+s.name, "uid", s.uid, "error", err)
	if p.passes(s) {
		s.spec = nil
		return nil
	}
	delete(p.sandboxes, s.id)
	return refusal("admit the pod", err)
}

// StopPodSandbox gives back what a pod has: its containers have ended.
func (p *Policy) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leave(ctx, p.sandbox(pod))
	return nil
}

// RemovePodSandbox forgets a pod.
func (p *Policy) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sandbox(pod)
	p.leave(ctx, s)
	delete(p.sandboxes, s.id)
	for id, m := range p.members {
		if m.pod == s {
			delete(p.members, id)
		}
	}
	return nil
}

// CreateContainer gives a container its place, and takes those out of the way that
// are on it.
func (p *Policy) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	m := &member{id: c.GetId(), name: c.GetName(), pod: p.sandbox(pod), asked: c.GetLinux().GetResources()}
	m.pod.stopped = false
	log := p.Log.With("pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "id", m.id)
	adjust, updates, err := p.create(ctx, m)
	switch {
	case err == nil:
		log.Info("a container is made", "cpus", m.cpus, "mems", m.mems, "own", !m.own.IsEmpty())
	case p.passes(m.pod):
		log.Warn("a container gets no place and is let pass to the shared CPUs", "cpus", p.shared.String(), "error", err)
		*m = member{id: m.id, name: m.name, pod: m.pod, asked: m.asked, cpus: p.shared.String()}
		adjust, updates = &api.ContainerAdjustment{}, nil
		p.unsettled = p.unsettled || berth.IsUnavailable(err) || ctx.Err() != nil
		if m.cpus != "" {
			adjust.SetLinuxCPUSetCPUs(m.cpus)
		}
	default:
		log.Warn("a container gets no place", "error", err)
		return nil, nil, refusal("place container "+m.name, err)
	}
	p.replace(m)
	return adjust, updates, nil
}

func (p *Policy) create(ctx context.Context, m *member) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	if p.barred != nil {
		return nil, nil, p.barred
	}
	a, err := p.place(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	adjust, err := adjustment(a, m.free)
	if err != nil {
		return nil, nil, err
	}
	m.cpus, m.mems = a.GetLinux().GetCpusetCpus(), a.GetLinux().GetCpusetMems()
	updates, err := p.drift(ctx)
	return adjust, updates, err
}

// replace takes a member on, in place of one of its name that was made and never
// came to life.
func (p *Policy) replace(m *member) {
	for id, other := range p.members {
		if other.pod == m.pod && other.name == m.name && other.pid == 0 {
			delete(p.members, id)
		}
	}
	p.members[m.id] = m
	m.pod.made[m.name] = true
}

// StartContainer binds a container in berthd. An error keeps it from starting: it
// is one if another container may still be on its CPUs.
func (p *Policy) StartContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.members[c.GetId()]
	if m == nil {
		return nil
	}
	err := p.barred
	if err == nil {
		err = p.bind(ctx, m)
	}
	if err == nil {
		err = p.vacate(m)
	}
	if err == nil || p.passes(m.pod) {
		return nil
	}
	return refusal("start container "+m.name, err)
}

// PostStartContainer notes the process.
func (p *Policy) PostStartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[c.GetId()]; m != nil {
		m.pid = int(c.GetPid())
	}
	return nil
}

// StopContainer tells berthd that a container has exited.
func (p *Policy) StopContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[c.GetId()]; m != nil {
		p.unbind(ctx, m)
	}
	return nil, nil
}

// RemoveContainer forgets a container.
func (p *Policy) RemoveContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if m := p.members[c.GetId()]; m != nil {
		p.unbind(ctx, m)
		delete(p.members, m.id)
		p.kick() // it may have been the pod's last
	}
	return nil
}
