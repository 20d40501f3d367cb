package reconcile

import (
	"context"
	"errors"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// scatter are the cgroups of containers and sandboxes out of which v1 may have moved processes. The zero value knows none.
// Guarded by Loop.mu.
type scatter struct {
	all      map[string]scattered // by name
	gathered bool                 // a pass has moved processes back since the start, and since the last loss
	justLost bool                 // the last loss is so recent that the kernel may still move processes
}

// scattered is a cgroup out of which v1 may have moved processes: to the nearest parent with
// CPUs, in this hierarchy only.
type scattered struct {
	name cgroup.Name
	// settled means that the processes were moved back once, or could not be. The kernel moves
	// them in the background, so the next pass moves them back again.
	settled bool
}

// emptied requests that the next pass moves the processes of all containers back: the kernel may have moved them out of a
// set without CPUs or NUMA nodes that berthd has filled again since, before a look at it.
func (s *scatter) emptied() { s.gathered, s.justLost = false, true }

func (s *scatter) note(name cgroup.Name, settled bool) {
	if s.all == nil {
		s.all = make(map[string]scattered)
	}
	s.all[name.String()] = scattered{name, settled}
}

// noteAll notes the cgroups of all containers and sandboxes, for which each calls note, once after the start and each loss: an
// earlier berthd may have ended after it wrote their CPUs, and before it moved their processes back.
func (s *scatter) noteAll(each func(note func(cgroup.Name))) {
	if s.gathered {
		return
	}
	each(func(name cgroup.Name) { s.note(name, !s.justLost) })
	s.gathered, s.justLost = true, false
}

// gather moves processes back to the cgroups that have CPUs again. Only with whole also to settled ones. elsewhere is called for
// a cgroup whose processes stay where they are.
func (s *scatter) gather(ctx context.Context, tree cgroup.Tree, whole bool, elsewhere func(name string)) error {
	var errs []error
	for key, one := range s.all {
		if one.settled && !whole {
			continue
		}
		seen, err := tree.Observe(ctx, one.name, 0)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		switch o := seen.Find(one.name); {
		case o.State == cgroup.Absent:
			delete(s.all, key)
			continue
		case o.Values.CPUs.IsEmpty() || o.Values.Mems.IsEmpty():
			s.all[key] = scattered{one.name, true} // no process can be moved there
			continue
		}
		if err := moveBack(ctx, tree, one.name); err != nil {
			errs = append(errs, err)
			elsewhere(key)
			continue
		}
		if one.settled {
			delete(s.all, key)
		} else {
			s.all[key] = scattered{one.name, true}
		}
	}
	return errors.Join(errs...)
}

// moveBack moves the processes that v1 shows in a cgroup into it: in this hierarchy they may be in a parent.
func moveBack(ctx context.Context, tree cgroup.Tree, name cgroup.Name) error {
	pids, err := tree.Procs(ctx, name)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := tree.Move(ctx, name, pid); err != nil && errdefs.ClassOf(err) != errdefs.NotFound {
			return err
		}
	}
	return nil
}
