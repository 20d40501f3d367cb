package admission

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// maxIDs bounds the ids of one container that may live at once. While a container restarts there are two: that of the
// container that ends, and that of the one that starts. More come from an agent that does not call PostStop.
const maxIDs = 16

// older lists the bindings of a container to other ids, oldest first.
func older(view *ledger.View, b ledger.Binding) (out []ledger.Binding) {
	for o := range view.BindingsOf(b.Owner.Pod) {
		if o.Owner == b.Owner && o.ID != b.ID {
			out = append(out, o)
		}
	}
	return out
}

// ended lists the older ids of a container whose processes are known to have ended when the container starts anew with
// a process that berth places. All of them have one cgroup, so nothing but that process may be in it. Of a process that
// the runtime places berth does not know where it is.
func (e *Engine) ended(ctx context.Context, view *ledger.View, b ledger.Binding, pid int) ([]string, error) {
	have := slices.DeleteFunc(older(view, b), func(o ledger.Binding) bool { return !o.Own })
	if len(have) == 0 || pid == 0 {
		return nil, nil
	}
	vacant, err := e.CgroupManager.Vacant(ctx, have[0], pid)
	if err != nil || !vacant {
		return nil, err
	}
	var ids []string
	for _, o := range have {
		ids = append(ids, o.ID)
	}
	return ids, nil
}

// bind binds an id and drops the older ones of the same container that have ended. Beyond maxIDs the oldest are dropped
// whose cgroup is the container's, which stays in force for the newest. A runtime's container has a cgroup of its own that
// only its binding keeps in force: with maxIDs of those the id is refused.
func bind(d *ledger.Draft, b ledger.Binding, ended []string) error {
	for _, id := range ended {
		d.Unbind(id)
	}
	have := older(d.View(), b)
	for i := 0; len(have)-i >= maxIDs; i++ {
		if !have[i].Own {
			return errdefs.Preconditionf("%d ids of this container may live already, the oldest is %s: call PostStopContainer for those that have ended",
				len(have), have[0].ID).Coded(errdefs.ContainerIDsExhausted, "pod_uid", b.Owner.Pod, "container_name", b.Owner.Container)
		}
		d.Unbind(have[i].ID)
	}
	d.Bind(b)
	return nil
}

// nextSequence numbers the bindings of one container.
func nextSequence(view *ledger.View, owner ledger.Owner) uint64 {
	var last uint64
	for b := range view.BindingsOf(owner.Pod) {
		if b.Owner == owner {
			last = max(last, b.Sequence)
		}
	}
	return last + 1
}
