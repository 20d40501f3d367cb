package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/placement"
)

// writer carries out ops, at the kernel or at the runtime, and notes in the tracker what may have come of each write. The caller of
// its methods holds Loop.mu.
type writer struct {
	shared
	calls *calls
}

// applied is the result of ops.
type applied struct {
	// failed are the names of cgroups that did not get all of their values.
	failed map[string]bool
	// created are the cgroups that were created.
	created []cgroup.Name
	// stopped means that not all ops were tried; err is the reason then.
	stopped bool
	err     error
}

// setCPUs writes the CPUs of a cgroup that is no container's of the runtime.
func (w *writer) setCPUs(ctx context.Context, name cgroup.Name, cpus cpuset.Set) error {
	_, err := w.ensure(ctx, runtimeContainers{}, cgroup.Op{Kind: cgroup.Set, Name: name,
		Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpus}}})
	return err
}

// applyTo prepares the runtime's containers and applies ops, some of which are for them.
func (w *writer) applyTo(ctx context.Context, g runtimeContainers, ops []cgroup.Op) applied {
	held, err := w.prepare(ctx, g)
	done := w.apply(ctx, g, ops, nil)
	for _, c := range held { // others may have left now
		withheld, failed := w.prepareOne(ctx, c)
		err = errors.Join(err, withheld, failed)
	}
	done.err = errors.Join(err, done.err, w.repeat(ctx, g))
	return done
}

// apply carries out ops in their order, some of which are for the runtime's containers in g. If an op fails, stop returns the error
// that ends it, or nil to go on; without stop the others are still carried out, except those below a cgroup that could not be created.
func (w *writer) apply(ctx context.Context, g runtimeContainers, ops []cgroup.Op, stop func(cgroup.Op, error) error) (out applied) {
	var errs []error
	var unmade []cgroup.Name
	for _, op := range ops {
		err := ctx.Err()
		for _, name := range unmade {
			if op.Name.Within(name) {
				err = errdefs.Preconditionf("set cgroup %s: its parent %s could not be made", op.Name, name)
			}
		}
		if err == nil {
			var created bool
			if created, err = w.ensure(ctx, g, op); created {
				out.created = append(out.created, op.Name)
			}
		}
		if w.cfg.Log.Enabled(ctx, slog.LevelDebug) {
			w.cfg.Log.DebugContext(ctx, "cgroup", "op", op.Kind, "name", op.Name.String(), "writes", op.Writes, "error", err)
		}
		if err == nil {
			continue
		}
		if stop != nil {
			if end := stop(op, err); end != nil {
				out.stopped, out.err = true, end
				return out
			}
		}
		if op.Kind == cgroup.Create {
			unmade = append(unmade, op.Name)
		}
		if out.failed == nil {
			out.failed = map[string]bool{}
		}
		out.failed[op.Name.String()] = true
		errs = append(errs, err)
	}
	out.err = errors.Join(errs...)
	return out
}

// ensure carries out one op, and returns whether it created the cgroup.
func (w *writer) ensure(ctx context.Context, g runtimeContainers, op cgroup.Op) (created bool, err error) {
	kind := OpUpdate
	if op.Kind == cgroup.Create {
		kind = OpCreate
	}
	defer w.cfg.timed(kind, w.cfg.Now())
	if c, ok := g.at(op.Name.String()); ok {
		err := w.tracker.granted(ofID(c.id), &op.Values)
		return false, errors.Join(err, w.update(ctx, c, op.Values))
	}
	withheld := w.tracker.granted(ofCgroup(op.Name), &op.Values)
	inside := w.names.inContainer(op.Name)
	if inside && op.Kind == cgroup.Create && w.ending.has(op.Name) {
		return false, nil // the container has ended since the plan
	}
	created, err = w.kernel.treeOf(op.Name).Ensure(ctx, cgroup.Node{Name: op.Name, Values: op.Values})
	if created && (op.Kind == cgroup.Set && w.names.inPod(op.Name) != "" || inside && w.ending.has(op.Name)) {
		// The container has ended, or the pod was removed, during the write.
		w.drift.forgetAll(op.Name)
		return false, errors.Join(withheld, w.cfg.Tree.Remove(ctx, op.Name))
	}
	w.written(ctx, op.Name, op.Values.CPUs, err)
	return created, errors.Join(withheld, err)
}

// timed reports the duration of an operation.
func (c *Config) timed(op Operation, start time.Time) {
	if c.Timed != nil {
		c.Timed(op, c.Now().Sub(start))
	}
}

// written applies the result of a write to the tracker.
func (w *writer) written(ctx context.Context, name cgroup.Name, cpus cpuset.Set, err error) {
	if cpus.IsEmpty() {
		return
	}
	key := ofCgroup(name)
	w.tracker.record(placement.Event{Kind: placement.Sent, Key: key, CPUs: cpus})
	if err == nil {
		w.tracker.record(placement.Event{Kind: placement.Confirmed, Key: key, CPUs: cpus})
		return
	}
	// The kernel has finished the write in either case, so its value can be read.
	w.tracker.record(placement.Event{Kind: placement.Refused, Key: key, CPUs: cpus})
	seen, looked := w.cfg.Tree.Observe(ctx, name, 0)
	if looked != nil {
		w.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: key, CPUs: cpus})
		return
	}
	if o := seen.Find(name); o.State != cgroup.Absent {
		w.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: key, CPUs: w.kernel.allowed(o)})
	}
}

// prepare sends the ledger's values to containers that do not run yet, and checks whether
// they have a process nevertheless. held are those without some own CPUs, which other
// containers have not left yet.
func (w *writer) prepare(ctx context.Context, g runtimeContainers) (held []runtimeContainer, err error) {
	var errs []error
	for _, c := range g.all {
		if c.runs {
			continue
		}
		withheld, err := w.prepareOne(ctx, c)
		if withheld != nil {
			held = append(held, c)
		}
		errs = append(errs, err)
	}
	return held, errors.Join(errs...)
}

// prepareOne is prepare for one container. withheld is the error about CPUs that were not sent.
func (w *writer) prepareOne(ctx context.Context, c runtimeContainer) (withheld, err error) {
	withheld = w.tracker.granted(ofID(c.id), &c.values)
	if err = w.calls.send(ctx, c.id, c.values); err == nil {
		err = w.lookAt(ctx, ofID(c.id))
	}
	return withheld, err
}

// repeat sends values again whose write may have failed, although the kernel has the right
// values: an earlier write may be carried out late, until a later one is confirmed.
func (w *writer) repeat(ctx context.Context, g runtimeContainers) error {
	var errs []error
	for _, c := range g.all {
		if w.tracker.Unconfirmed(ofID(c.id)) && w.tracker.writes[c.id] == nil {
			errs = append(errs, w.update(ctx, c, c.values))
		}
	}
	return errors.Join(errs...)
}

// update sends the values of an op to the runtime. A container that has ended has left its
// CPUs, whatever the runtime's answer is.
func (w *writer) update(ctx context.Context, g runtimeContainer, v cgroup.Values) error {
	if v.CPUWeight != nil {
		v.CPUShares = g.values.CPUShares // CRI has no weight
	}
	if c, ok := w.tracker.Get(ofID(g.id)); ok && v.CPUs.IsEmpty() && !c.WantedCPUs.IsEmpty() {
		// With each update a runtime writes all values that it knows. Its CPUs are not those of
		// the kernel if the container was moved while the runtime was away.
		v.CPUs = w.tracker.Grantable(ofID(g.id), c.WantedCPUs)
		if v.CPUs.IsEmpty() {
			return errdefs.Unavailablef("update container %s: all of its CPUs %s may be in use by others", g.id, c.WantedCPUs)
		}
	}
	err := w.calls.send(ctx, g.id, v)
	if err == nil || errors.Is(err, errPending) || !g.runs {
		return err
	}
	if pids, kernel := w.cfg.Tree.Procs(ctx, g.name); kernel == nil && len(pids) == 0 {
		w.cfg.Log.DebugContext(ctx, "a container has ended while it was updated", "container", g.owner.String(), "id", g.id, "error", err)
		w.tracker.record(placement.Event{Kind: placement.Ended, Key: ofID(g.id)})
		return nil
	}
	return err
}

// lookAt reads from the kernel where a container may run. An error wraps errUnlisted if the
// runtime does not list it and it runs elsewhere than it should.
func (w *writer) lookAt(ctx context.Context, key placement.Key) error {
	name := w.tracker.cgroups[key.ID]
	if key.Cgroup != "" {
		name = cgroup.ParseCgroupfs(key.Cgroup)
	}
	if name == nil {
		return nil
	}
	seen, err := w.cfg.Tree.Observe(ctx, name, 0)
	if err != nil {
		return fmt.Errorf("%w: container %s: %w", errUnlisted, key, err)
	}
	o := seen.Find(name)
	c, _ := w.tracker.Get(key)
	if o.State == cgroup.Absent {
		if key.Cgroup != "" && w.tracker.starting[key] == 0 {
			w.tracker.forget(key) // no process can be in it
		}
		if c.Phase == placement.Unknown { // it has ended meanwhile
			w.tracker.record(placement.Event{Kind: placement.KernelEmpty, Key: key})
		}
		return nil
	}
	if !o.Populated && c.Phase != placement.Unknown {
		return nil
	}
	on := w.kernel.allowed(o)
	w.tracker.record(placement.Event{Kind: placement.KernelRuns, Key: key, CPUs: on})
	if c.Phase == placement.Unknown && !on.IsSubsetOf(c.WantedCPUs) {
		return errdefs.Unavailablef("%w: container %s, %s: it is in cgroup %s on CPUs %s and not %s", errUnlisted, c.Name, key, name, on,
			c.WantedCPUs)
	}
	return nil
}
