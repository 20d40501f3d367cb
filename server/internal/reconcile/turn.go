package reconcile

import (
	"context"

	"github.com/berthd/berth/managers/cgroup"
)

// Turn offers what a caller of Loop.Turn may do in it.
type Turn struct{ loop *Loop }

// Turn calls do in a turn of its own: meanwhile the loop writes nothing.
func (l *Loop) Turn(ctx context.Context, do func(Turn) error) error {
	if err := l.mu.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	return do(Turn{l})
}

// Observe looks at the cgroups of nodes.
func (t Turn) Observe(ctx context.Context, nodes []cgroup.Node) (*cgroup.Snapshot, error) {
	return t.loop.kernel.observe(ctx, nodes)
}

// Apply carries out ops. The error has those that failed.
func (t Turn) Apply(ctx context.Context, ops []cgroup.Op) error {
	return t.loop.writer.apply(ctx, runtimeContainers{}, ops, nil).err
}

// Limits are those of the configuration.
func (t Turn) Limits() Limits { return t.loop.Limits }

// RuntimeContainer returns the id of the runtime's container in whose cgroup another one is.
func (t Turn) RuntimeContainer(name cgroup.Name) (id string, ok bool) {
	for id, at := range t.loop.tracker.cgroups {
		if name.Within(at) {
			return id, true
		}
	}
	return "", false
}
