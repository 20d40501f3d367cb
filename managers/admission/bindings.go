package admission

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// maxIDs limits the ids of one container. During a restart there are two: the old and the
// new one. More ids mean that the agent does not call PostStop.
const maxIDs = 16

// older returns the container's other ids, oldest first.
func older(view *ledger.View, b ledger.Binding) (out []ledger.Binding) {
	for o := range view.BindingsOf(b.Owner.Pod) {
		if o.Owner == b.Owner && o.ID != b.ID {
			out = append(out, o)
		}
	}
	return out
}

// ended returns the older ids of a container that have certainly ended when the container
// starts with a process placed by berth. All ids share one cgroup, so it must have no other
// process. For a process placed by the runtime this cannot be known.
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

// bind binds an id and removes the container's older ids that have ended. Beyond maxIDs it
// removes the oldest ids that share the container's cgroup; the cgroup keeps its values for
// the newest id. A runtime's container has its own cgroup, and only its binding keeps that
// up to date. With maxIDs of these, the new id is refused.
func bind(d *ledger.Draft, b ledger.Binding, ended []string) error {
	for _, id := range ended {
		d.Unbind(id)
	}
	have := older(d.View(), b)
	for i := 0; len(have)-i >= maxIDs; i++ {
		if !have[i].Own {
			return errdefs.Preconditionf("%d ids of this container may be running already, the oldest is %s: call PostStopContainer for those that have ended",
				len(have), have[0].ID).Coded(errdefs.ContainerIDsExhausted, "pod_uid", b.Owner.Pod, "container_name", b.Owner.Container)
		}
		d.Unbind(have[i].ID)
	}
	d.Bind(b)
	return nil
}

// nextSequence returns the next number for a container's bindings.
func nextSequence(view *ledger.View, owner ledger.Owner) uint64 {
	var last uint64
	for b := range view.BindingsOf(owner.Pod) {
		if b.Owner == owner {
			last = max(last, b.Sequence)
		}
	}
	return last + 1
}
