package policy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/nri/pkg/api"

	allocationv1 "github.com/berthd/berth/api/berth/allocation/v1"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/managers/fault"
)

// Synchronize takes over what runs: it tells berthd which pods live, gives a place
// to what has none, and brings what has drifted back. Where berthd does not answer,
// Follow does that later; the runtime must not be kept waiting, since it would go
// on without anybody.
func (p *Policy) Synchronize(ctx context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	ctx, cancel := p.within(ctx, eventShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told, p.sandboxes, p.members = true, map[string]*sandbox{}, map[string]*member{}
	for _, pod := range pods {
		s := p.sandbox(pod)
		var err error
		if s.spec, err = p.find(s); err != nil {
			p.Log.Warn("look for a pod's specification", "pod", s.namespace+"/"+s.name, "error", err)
		}
	}
	for _, c := range containers {
		s := p.sandboxes[c.GetPodSandboxId()]
		if s == nil {
			continue
		}
		s.made[c.GetName()] = true
		if c.GetState() != api.ContainerState_CONTAINER_STOPPED {
			s.names[c.GetName()] = false
			r := c.GetLinux().GetResources()
			p.members[c.GetId()] = &member{id: c.GetId(), name: c.GetName(), pod: s, asked: r, cpus: r.GetCpu().GetCpus(), mems: r.GetCpu().GetMems(), pid: int(c.GetPid())}
		}
	}
	for _, pod := range pods {
		// A runtime also tells of sandboxes that have ended.
		s := p.sandboxes[pod.GetId()]
		s.stopped = pod.GetPid() == 0 && len(s.names) == 0
	}
	p.Log.Info("the runtime has told what runs", "pods", len(pods), "containers", len(p.members))
	updates, err := p.settle(ctx)
	if err != nil {
		p.Log.Warn("what runs stays as it is for now", "error", err)
		return nil, nil
	}
	return updates, nil
}

// settle brings berthd's ledger and the members together. The caller holds mu.
func (p *Policy) settle(ctx context.Context) ([]*api.ContainerUpdate, error) {
	p.unsettled = p.told
	if !p.told {
		return nil, nil
	}
	p.barred = nil
	if err := Alone(ctx, p.Client); err != nil {
		if fault.ClassOf(err) == fault.Precondition {
			p.barred = err
		}
		return nil, err
	}
	if err := p.warnOfDevices(ctx); err != nil {
		return nil, err
	}
	if _, err := p.Client.Sync(ctx, p.living); err != nil {
		return nil, err
	}
	for _, s := range p.sandboxes {
		if err := p.recognize(ctx, s); err != nil {
			return nil, err
		}
	}
	for _, m := range p.live() {
		if err := p.restore(ctx, m); err != nil {
			if berth.IsUnavailable(err) {
				return nil, err
			}
			p.Log.Warn("a container that runs gets no place, and is moved to the shared CPUs", "pod", m.pod.namespace+"/"+m.pod.name, "container", m.name, "error", err)
			m.key = ""
		}
	}
	for _, m := range p.live() {
		if err := p.recount(ctx, m); err != nil {
			return nil, err
		}
	}
	updates, err := p.drift(ctx)
	p.unsettled = err != nil
	return updates, err
}

// recognize finds out whether berthd has a pod as a whole.
func (p *Policy) recognize(ctx context.Context, s *sandbox) error {
	if s.stopped {
		return nil
	}
	_, err := p.Client.Allocation().Get(ctx, &allocationv1.GetRequest{PodUid: s.uid})
	if s.whole = err == nil; s.whole || berth.IsNotFound(err) {
		return nil
	}
	return err
}

// restore gives a container that runs its place, or a place.
func (p *Policy) restore(ctx context.Context, m *member) error {
	key := m.pod.key(m.name)
	if m.pod.whole {
		key = m.pod.uid
	}
	a, err := p.allocate(ctx, m, key)
	if berth.IsNotFound(err) {
		a, err = p.place(ctx, m)
	}
	if err != nil {
		return err
	}
	m.bound = slices.Contains(a.GetAllocation().GetContainerIds(), m.id)
	if mems := a.GetLinux().GetCpusetMems(); mems != m.mems {
		m.mems, m.cpus = mems, "" // both are updated
	}
	if m.pid == 0 {
		return nil // StartContainer binds it
	}
	return p.bind(ctx, m)
}

// Updater is a runtime that updates containers on request; package stub's is one.
type Updater interface {
	UpdateContainers([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)
}

// pause is how long Follow waits after something has failed; glance is how often
// it looks for drift when nothing has happened.
const (
	pause  = time.Second
	glance = 30 * time.Second
)

// Follow brings changes of the ledger to the containers that run, until the
// context ends: above all that the shared CPUs have become more, or fewer.
func (p *Policy) Follow(ctx context.Context, runtime Updater) {
	for ctx.Err() == nil {
		err := p.follow(ctx, runtime)
		if ctx.Err() != nil {
			return
		}
		p.Log.Warn("berthd is not followed", "error", err)
		p.mu.Lock()
		p.unsettled = true
		p.mu.Unlock()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// follow does so until berthd goes away.
func (p *Policy) follow(ctx context.Context, runtime Updater) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := p.Client.WaitReady(ctx); err != nil {
		return err
	}
	now, err := p.Client.Allocation().GetRevision(ctx, &allocationv1.GetRevisionRequest{})
	if err != nil {
		return err
	}
	stream, err := p.Client.Allocation().Watch(ctx, &allocationv1.WatchRequest{FromRevision: now.GetRevision(), Types: moves})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		for {
			commit, err := stream.Recv()
			if err != nil {
				ended <- err
				return
			}
			if len(commit.GetEvents()) > 0 {
				p.kick()
			}
		}
	}()
	tick := time.NewTicker(glance)
	defer tick.Stop()
	for {
		if err := p.push(ctx, runtime); err != nil {
			return err
		}
		select {
		case <-p.kicked:
		case <-tick.C:
		case err := <-ended:
			return err
		}
	}
}

// moves are the events that may change the CPUs of a container that runs.
var moves = []allocationv1.EventType{allocationv1.EventType_EVENT_TYPE_SHARED_CPUS, allocationv1.EventType_EVENT_TYPE_CHANGED}

// push updates what has drifted. The runtime calls in here while it does nothing
// else, so mu must be free while it is called; what another call has given out
// meanwhile may have been overtaken by it, and is given out again.
func (p *Policy) push(ctx context.Context, runtime Updater) error {
	for {
		updates, err := p.look(ctx)
		if err != nil || len(updates) == 0 {
			return err
		}
		p.Log.Info("containers move", "containers", len(updates))
		failed, err := runtime.UpdateContainers(updates)
		if err == nil && len(failed) > 0 {
			err = errors.New("the runtime could not update " + failed[0].GetContainerId())
		}
		if err != nil {
			p.Log.Warn("update containers", "error", err)
			time.AfterFunc(pause, p.kick)
		}
		if !p.landed(updates, err != nil) {
			return nil
		}
	}
}

// look gives the updates that are due, and notes that they are under way. It is
// quick, since events wait for it.
func (p *Policy) look(ctx context.Context) ([]*api.ContainerUpdate, error) {
	ctx, cancel := p.within(ctx, followShare)
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sweep(ctx)
	compare := p.drift
	if p.unsettled {
		compare = p.settle
	}
	updates, err := compare(ctx)
	if err != nil {
		return nil, err
	}
	for _, u := range updates {
		if m := p.members[u.GetContainerId()]; m != nil {
			m.flying = m.cpus
		}
	}
	return updates, nil
}

// sweep gives back what pods have whose end was not told: containerd tells nothing
// of the end of a sandbox that is older than itself. The caller holds mu.
func (p *Policy) sweep(ctx context.Context) {
	alive := map[*sandbox]bool{}
	for _, m := range p.live() {
		alive[m.pod] = true
	}
	for _, s := range p.sandboxes {
		if s.stopped || s.pid == 0 || alive[s] {
			continue
		}
		if _, err := p.CPUsOf(s.pid); gone(err) {
			p.leave(ctx, s)
		}
	}
}

// landed takes note that updates were carried out, and tells whether some were
// overtaken. Where they failed the next look sends them again.
func (p *Policy) landed(updates []*api.ContainerUpdate, failed bool) (overtaken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range updates {
		m := p.members[u.GetContainerId()]
		if m == nil {
			continue
		}
		if m.cpus != m.flying {
			overtaken = true
			m.cpus = ""
		}
		if failed {
			m.cpus = ""
		}
		m.flying = ""
	}
	return overtaken
}
