package reconcile

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// sandboxes reads and writes the cgroups of opening pods and of their sandboxes. The caller of its methods holds Loop.mu.
type sandboxes struct {
	shared
	writer  *writer
	opening openings
	sharers sharers
}

// beginOpening restricts the cgroup of a new pod, if a runtime will start a sandbox in it. A cgroup that is already there may be of a
// pod that was opening when the ledger was lost: then it has fewer CPUs than the one above. It returns whether the pod is opening
// since.
func (s *sandboxes) beginOpening(ctx context.Context, view *ledger.View, p *ledger.Pod, node *cgroup.Node,
	seen *cgroup.Snapshot) (bool, error) {
	now := s.cfg.View() // other pods may have been committed since view
	o := seen.Find(node.Name)
	if o.State == cgroup.Absent {
		if s.cfg.Runtime == nil {
			return false, nil
		}
		one := opening{node.Name, ownCPUs(view, p)}
		s.opening.pods[p.UID()] = one
		node.Values.CPUs = s.opening.cpus(now, p.UID())
		s.opening.add(now, p.UID(), one, node.Values.CPUs)
		return true, nil
	}
	if _, opens := s.opening.pods[p.UID()]; opens || o.Values.CPUs.IsEmpty() {
		return false, nil
	}
	above, err := s.cfg.Tree.Observe(ctx, o.Name.Parent(), 0)
	if err != nil {
		return false, fmt.Errorf("check the cgroup above pod %s: %w", p.UID(), err)
	}
	if s.kernel.allowed(above.Find(o.Name.Parent())).IsSubsetOf(o.Values.CPUs) {
		return false, nil
	}
	s.opening.add(now, p.UID(), opening{o.Name, ownCPUs(view, p)}, o.Values.CPUs)
	return true, nil
}

// endOpening prepares the cgroup of a pod for its first container. The cgroups in it are of
// its sandbox, except that of a container that is bound or being started.
func (s *sandboxes) endOpening(ctx context.Context, view *ledger.View, uid, starting string) error {
	o, ok := s.opening.pods[uid]
	if !ok {
		return nil
	}
	seen, err := s.cfg.Tree.Observe(ctx, o.name, 1)
	if err != nil {
		return fmt.Errorf("look for the sandbox of pod %s: %w", uid, err)
	}
	for i := range seen.Nodes {
		child := &seen.Nodes[i]
		if len(child.Name) == len(o.name) || isCalled(child.Name, starting) || s.names.isContainer(view, uid, child.Name) {
			continue
		}
		// One that cannot be moved blocks containers with exclusive CPUs, and not its own pod.
		if err := s.moveSandbox(ctx, view, sharer{name: child.Name, pod: uid, sandbox: true}, child.Values.CPUs); err != nil {
			s.cfg.Log.WarnContext(ctx, "a sandbox is not moved to the shared CPUs", "pod", uid, "name", child.Name.String(), "error", err)
		}
	}
	above, err := s.cfg.Tree.Observe(ctx, o.name.Parent(), 0)
	if err != nil {
		return fmt.Errorf("check the cgroup above pod %s: %w", uid, err)
	}
	if parent := above.Find(o.name.Parent()); seen.Find(o.name).State != cgroup.Absent && parent.State != cgroup.Absent {
		if err := s.writer.setCPUs(ctx, o.name, s.kernel.allowed(parent)); err != nil {
			return fmt.Errorf("give pod %s all CPUs of the cgroup above: %w", uid, err)
		}
	}
	s.opening.stop(uid)
	s.drift.forget(o.name)
	return nil
}

// moveSandbox gives a sandbox its CPUs, wherever its pod's cgroup may run afterwards.
func (s *sandboxes) moveSandbox(ctx context.Context, view *ledger.View, one sharer, present cpuset.Set) error {
	cpus := view.CommonCPUs()
	if cpus.IsEmpty() {
		return nil
	}
	if s.sharers.hasSandbox(one.name, one.pod) {
		s.sharers.watch(view, one)
	} else {
		s.sharers.add(view, one)
	}
	if present != cpus {
		if err := s.writer.setCPUs(ctx, one.name, cpus); err != nil {
			return fmt.Errorf("move the sandbox of pod %s: %w", one.pod, err)
		}
	}
	s.tracker.record(placement.Event{Kind: placement.ShownRunning, Key: ofCgroup(one.name)})
	s.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: ofCgroup(one.name), CPUs: cpus})
	return nil
}

// endOpenings ends the opening of pods whose containers have started without a call.
func (s *sandboxes) endOpenings(ctx context.Context, view *ledger.View) {
	for uid := range s.opening.pods {
		if s.cfg.Runtime != nil && !hasContainers(view, uid) {
			continue
		}
		if err := s.endOpening(ctx, view, uid, ""); err != nil {
			s.cfg.Log.WarnContext(ctx, "prepare the cgroup of a pod that runs", "pod", uid, "error", err)
		}
	}
}
