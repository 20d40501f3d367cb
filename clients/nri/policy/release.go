package policy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/berthd/berth/clients/nri/amounts"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// Everything has the CPUs and memory nodes of a container that berth does not place.
type Everything struct {
	// CPUs may include some that are offline. Online are those that the kernel shows for a process on all
	// CPUs; empty if they are the same.
	CPUs, Online cpuset.Set
	// Mems are the memory nodes in the kernel's format; empty if they stay.
	Mems string
}

// looking is the interval of the comparisons of Release.
const looking = 200 * time.Millisecond

// Release moves every container and sandbox process back to all CPUs and memory nodes, and gives
// containers that had exclusive CPUs, and their pods, their quota again: the node is as it was without berth. From
// then on no container is placed. Follow must have ended. Release returns when the runtime has carried
// out the updates and the processes have left the CPUs that berth gave them, or with an error that names
// those that have not when the context ends.
func (p *Policy) Release(ctx context.Context, runtime Updater, all Everything) error {
	p.mu.Lock()
	p.gate.released = true
	p.mu.Unlock()
	tick := time.NewTicker(looking)
	defer tick.Stop()
	for {
		left, updates := p.releases(all)
		if len(left) == 0 {
			p.log.Info("all containers are back on all CPUs", "cpus", all.CPUs.String())
			return nil
		}
		var err error
		if len(updates) > 0 {
			var failed []*api.ContainerUpdate
			failed, err = p.writer.request(ctx, runtime, updates)
			p.accepted(updates, failed, err)
			left, _ = p.releases(all)
		}
		if len(left) == 0 {
			continue
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errdefs.Unavailablef("these are not back on CPUs %s: %s (%w)", all.CPUs, strings.Join(left, ", "), errOr(err, ctx.Err()))
		}
	}
}

// accepted records the updates that the runtime has confirmed.
func (p *Policy) accepted(updates, failed []*api.ContainerUpdate, err error) {
	if err != nil && len(failed) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, u := range updates {
		refused := slices.ContainsFunc(failed, func(f *api.ContainerUpdate) bool { return f.GetContainerId() == u.GetContainerId() })
		if m := p.node.members[u.GetContainerId()]; m != nil && !refused {
			m.back = true
		}
	}
}

func errOr(err, otherwise error) error {
	if err != nil {
		return err
	}
	return otherwise
}

// releases moves the sandboxes' processes. It returns the containers that are not on all CPUs yet, with
// their updates.
func (p *Policy) releases(all Everything) (left []string, updates []*api.ContainerUpdate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.node.sandboxes {
		if err := p.quotas.restore(s); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, fmt.Sprintf("the quota of %s/%s", s.namespace, s.name))
		}
		if _, err := p.kernel.moveTo(s, all.CPUs); err != nil && !gone(err) && errdefs.ClassOf(err) != errdefs.PermissionDenied {
			left = append(left, fmt.Sprintf("the sandbox of %s/%s", s.namespace, s.name))
		}
	}
	for _, m := range p.node.live() {
		cpus, err := cpuset.Set{}, error(nil)
		if m.pid != 0 {
			cpus, err = p.kernel.cpusOf(&m.process)
		}
		if gone(err) || m.back && (m.pid == 0 || err == nil && p.widened(m, cpus, all)) {
			continue
		}
		left = append(left, m.title())
		updates = append(updates, backUpdate(m, all))
	}
	return left, updates
}

// widened reports whether an update to all CPUs has reached a process. If the process has narrowed its
// own affinity, or a cgroup above has fewer CPUs, it still has fewer than all. Then its CPUs differ
// from those that berth gave to the container.
func (p *Policy) widened(m *member, cpus cpuset.Set, all Everything) bool {
	c, _ := p.tracks.state(m)
	online := all.Online
	if online.IsEmpty() {
		online = all.CPUs
	}
	return cpus == online || cpus != c.AssignedCPUs
}

// backUpdate returns an update to all CPUs and memory nodes, with the quota that berth removed.
func backUpdate(m *member, all Everything) *api.ContainerUpdate {
	u := &api.ContainerUpdate{}
	u.SetContainerId(m.id)
	u.SetLinuxCPUSetCPUs(all.CPUs.String())
	if all.Mems != "" {
		u.SetLinuxCPUSetMems(all.Mems)
	}
	quota := m.lostQuota()
	if m.free && m.resources.GetCpu().GetQuota().GetValue() > 0 {
		// With claims, the limit may be more than the request.
		quota = amounts.Of(m.resources, false).CPULimit * amounts.Period / amounts.MilliPerCPU
	}
	setQuota(u, quota)
	return u
}
