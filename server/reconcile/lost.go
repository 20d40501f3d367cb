package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/fault"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/runtime"
)

// errLost is why others have to wait: a container runs, or may, that the runtime does not
// show, and so cannot be told where it may.
var errLost = errors.New("a container runs, or may, that the container runtime does not show")

// search looks for containers of a view that run though the runtime has not listed them,
// as after it lost its own records. An error is about those that are where they may not be,
// or of which that is not known, and wraps errLost. The caller holds mu.
func (l *Loop) search(ctx context.Context, view *ledger.View, listed map[string]runtime.Phase) error {
	l.lost = nil
	var errs []error
	for b := range view.Bindings() {
		if _, shown := listed[b.ID]; shown || b.Own || l.leaving[b.Owner.Pod] {
			continue
		}
		name, err := l.alive(ctx, view, b)
		if name == nil && err == nil {
			continue
		}
		l.lost = append(l.lost, b.Owner)
		if err == nil {
			err = l.allowed(ctx, name, cgroup.ContainerCpuset(view, b.Owner).CPUs)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w: container %s, %s: %w", errLost, b.Owner, b.ID, err))
		}
	}
	return errors.Join(errs...)
}

// allowed returns an error unless a cgroup keeps to some CPUs. Fewer are enough: where
// it has not got what was added since, nobody else has to wait for it.
func (l *Loop) allowed(ctx context.Context, name cgroup.Name, want cpuset.Set) error {
	seen, err := l.Tree.Observe(ctx, name, 0)
	if err != nil {
		return err
	}
	o := seen.Find(name)
	if o.State == cgroup.Absent || want.IsEmpty() || !o.Values.CPUs.IsEmpty() && o.Values.CPUs.IsSubsetOf(want) {
		return nil
	}
	return fault.Unavailablef("it is in cgroup %s on CPUs %s and not %s", name, o.Values.CPUs, want)
}

// alive finds the cgroup of a container that a runtime has made, where it has processes,
// without asking the runtime; nil if there is none to be seen. The caller holds mu.
func (l *Loop) alive(ctx context.Context, view *ledger.View, b ledger.Binding) (cgroup.Name, error) {
	var places []cgroup.Name
	if s, ok := l.strays[b.ID]; ok {
		places = append(places, s.name)
	}
	_, pod, err := l.pod(view, b.Owner.Pod)
	if err != nil {
		return nil, err
	}
	inside, err := l.Tree.Observe(ctx, pod, 1)
	if err != nil {
		return nil, err
	}
	for _, o := range inside.Nodes {
		if !o.Name.Equal(pod) && bears(o.Name, b.ID) {
			places = append(places, o.Name)
		}
	}
	for _, name := range places {
		pids, err := l.Tree.Procs(ctx, name)
		if err != nil {
			return nil, err
		}
		if len(pids) > 0 {
			return name, nil
		}
	}
	return nil, nil
}

// bears tells whether a cgroup is called after a container, as runtimes do: ID, PREFIX-ID
// or PREFIX-ID.scope. What CRI-O has watch a container, conmon, has a cgroup beside it that
// is called nearly so.
func bears(name cgroup.Name, id string) bool {
	prefix, ok := strings.CutSuffix(strings.TrimSuffix(name.Base(), ".scope"), id)
	return ok && (prefix == "" || strings.HasSuffix(prefix, "-") && !strings.HasSuffix(prefix, "-conmon-"))
}

// Lives tells whether a container that a runtime has made, and does not list, has
// processes.
func (l *Loop) Lives(ctx context.Context, b ledger.Binding) (bool, error) {
	if err := l.enter(ctx); err != nil {
		return false, err
	}
	defer l.mu.Unlock()
	view := l.View()
	if _, here := view.Pod(b.Owner.Pod); !here {
		return false, nil
	}
	name, err := l.alive(ctx, view, b)
	return name != nil, err
}
