package policy

import (
	"context"
	"log/slog"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// RunPodSandbox admits a pod whose specification is known. An error prevents the start of the
// sandbox.
func (p *Policy) RunPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	s := p.sandbox(pod)
	if p.released {
		return nil
	}
	err := p.admitPod(ctx, s)
	if err == nil {
		return nil
	}
	p.Log.Log(ctx, level(err), "a pod was not admitted", "pod", s.namespace+"/"+s.name, "uid", s.uid, "error", err)
	if p.passes(s) {
		return nil // CreateContainer tries again, and decides
	}
	delete(p.sandboxes, s.id)
	return refusal("admit the pod", err)
}

// admitPod admits a pod as a whole, if a source has its specification.
func (p *Policy) admitPod(ctx context.Context, s *sandbox) error {
	if err := p.bar(); err != nil {
		return err
	}
	if err := p.search(ctx, s); err != nil {
		return err
	}
	if err := p.enter(ctx, s); err != nil {
		return err
	}
	p.moveSandboxes()
	return nil
}

// level is the log level of a refusal. A repeated one is in the log already.
func level(err error) slog.Level {
	if repeated(err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

// StopPodSandbox releases a pod's allocations, because its containers have ended.
func (p *Policy) StopPodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	if s := p.sandboxes[pod.GetId()]; s != nil {
		p.leave(ctx, s)
	}
	return nil
}

// RemovePodSandbox deletes a pod.
func (p *Policy) RemovePodSandbox(ctx context.Context, pod *api.PodSandbox) error {
	ctx, end := p.begin(ctx)
	defer end()
	if s := p.sandboxes[pod.GetId()]; s != nil {
		if p.leave(ctx, s); s.leaving {
			p.kick() // sweep deletes the sandbox
		}
	}
	return nil
}

// drop deletes a pod that has ended.
func (p *Policy) drop(s *sandbox) {
	delete(p.sandboxes, s.id)
	for _, m := range p.all() {
		if m.pod == s {
			p.discard(m)
		}
	}
}

// CreateContainer allocates a container's resources, and moves other containers off its CPUs.
func (p *Policy) CreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment,
	[]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if p.released {
		return nil, nil, nil
	}
	m := &member{id: c.GetId(), name: c.GetName(), pod: p.sandbox(pod), resources: c.GetLinux().GetResources(),
		cgroup: c.GetLinux().GetCgroupsPath(), created: p.Now().UnixNano(), life: made}
	m.readParts(c)
	m.pod.leaving = false
	log, room := p.Log.With("container", m.title(), "id", m.id), p.room.Load()
	cpus, adjust, err := p.create(ctx, m)
	switch {
	case err == nil:
		log.Debug("a container is made", "cpus", cpus.String(), "mems", m.mems, "own", !m.own.IsEmpty())
	case p.passes(m.pod):
		log.Warn("a container has no allocation and may start on the shared CPUs", "cpus", p.shared.String(), "error", err)
		*m = member{id: m.id, name: m.name, pod: m.pod, resources: m.resources, cgroup: m.cgroup, parts: m.parts, cdi: m.cdi,
			created: m.created, match: denied, room: room}
		if adjust = (&api.ContainerAdjustment{}); p.standby == nil {
			cpus = p.shared
		}
		p.unreconciled = p.unreconciled || undecided(err) || ctx.Err() != nil
		if !cpus.IsEmpty() {
			adjust.SetLinuxCPUSetCPUs(cpus.String())
		}
	default:
		log.Log(ctx, level(err), "a container was not allocated", "error", err)
		return nil, nil, refusal("place container "+m.name, err)
	}
	p.replace(m)
	p.introduce(m, cpus)
	updates := p.clear(m)
	if m.own.IsEmpty() {
		p.kick() // other members may have to move; the new one does not wait for them
	}
	return adjust, updates, nil
}

// introduce adds a new member to the tracker, with the CPUs of its creation. Without CPUs the runtime
// chooses them, so the member may run anywhere until its process is seen.
func (p *Policy) introduce(m *member, cpus cpuset.Set) {
	if cpus.IsEmpty() {
		p.apply(m, placement.Restore, cpuset.Set{})
		p.apply(m, placement.Allow, cpuset.Set{})
		return
	}
	p.apply(m, placement.Plan, cpuset.Set{})
	p.assign(m, cpus, m.own)
	p.apply(m, placement.Sent, cpus)
	p.apply(m, placement.Confirmed, cpus)
	p.apply(m, placement.Allow, cpuset.Set{})
}

// create allocates for a member, and returns the adjustment for the runtime.
func (p *Policy) create(ctx context.Context, m *member) (cpus cpuset.Set, adjust *api.ContainerAdjustment, err error) {
	if err := p.bar(); err != nil {
		return cpus, nil, err
	}
	if err := p.compare(ctx, m.pod); err != nil {
		return cpus, nil, err
	}
	if m.pod.spec == nil && m.pod.form != apart {
		if err := p.search(ctx, m.pod); err != nil && m.pod.form == unadmitted {
			return cpus, nil, err
		}
	}
	if err := p.readClaims(ctx, m); err != nil {
		return cpus, nil, err
	}
	a, err := p.allocateOrAdmit(ctx, m)
	if err == nil {
		a, err = p.sized(ctx, m, a)
	}
	if err != nil {
		return cpus, nil, err
	}
	if err := p.withClaims(ctx, m, a); err != nil {
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
	if left := cpus.Minus(p.forgotten); m.own.IsEmpty() && left != cpus {
		if left.IsEmpty() {
			return cpus, nil, errdefs.Unavailablef("CPUs %s are of claims or running containers that berthd does not have, and no other CPU is shared; they are admitted again", cpus)
		}
		cpus = left
		adjust.SetLinuxCPUSetCPUs(cpus.String())
	}
	return cpus, adjust, nil
}

// replace adds a member. It deletes the members with the same name that have no process and get none.
func (p *Policy) replace(m *member) {
	for _, other := range p.members {
		if other.pod == m.pod && other.name == m.name && other.pid == 0 && !p.pending(other) {
			p.discard(other)
		}
	}
	p.members[m.id] = m
	m.pod.make(m.name)
}

// ended reports whether the runtime says that a container has no process any more.
func ended(c *api.Container) bool { return c.GetState() == api.ContainerState_CONTAINER_STOPPED }

// PostCreateContainer makes a container comparable. The runtime has stored it now, so updates of
// it have an effect.
func (p *Policy) PostCreateContainer(ctx context.Context, pod *api.PodSandbox, c *api.Container) error {
	_, end := p.begin(ctx)
	defer end()
	if m := p.known(pod, c); m != nil && !m.life.over() {
		p.apply(m, placement.ShownCreated, cpuset.Set{})
		p.kick()
	}
	return nil
}

// StopContainer reports to berthd that a container has exited. Its answer can carry updates of other containers.
func (p *Policy) StopContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	ctx, end := p.begin(ctx)
	defer end()
	if m := p.members[c.GetId()]; m != nil {
		p.unbind(ctx, m)
	}
	return p.answer(nil, nobody), nil
}

// RemoveContainer deletes a container.
func (p *Policy) RemoveContainer(ctx context.Context, _ *api.PodSandbox, c *api.Container) error {
	ctx, end := p.begin(ctx)
	defer end()
	if m := p.members[c.GetId()]; m != nil {
		p.unbind(ctx, m)
		if m.pid == 0 {
			p.apply(m, placement.Ended, cpuset.Set{}) // the runtime has removed it
		}
		p.forget(m)
		p.kick() // it may have been the pod's last
	}
	return nil
}
