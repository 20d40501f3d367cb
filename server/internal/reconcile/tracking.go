package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/placement"
)

// pollInterval is the time between two lists while a container is being started.
const pollInterval = 50 * time.Millisecond

// CgroupOf returns the cgroup of a container's processes, false while it is not known. It does
// not wait for passes.
func (l *Loop) CgroupOf(b ledger.Binding) (cgroup.Name, bool) {
	if b.Own {
		return l.Layout.Driver().Parse(b.CgroupPath), b.CgroupPath != ""
	}
	name, ok := l.tracker.located.Load(b.ID)
	if !ok {
		return nil, false
	}
	return name.(cgroup.Name), true
}

// holdsProcess returns whether a process runs in the first cgroup or below it. The cgroups
// below it follow it in the list.
func holdsProcess(nodes []cgroup.Observed) bool {
	for i := range nodes {
		if !nodes[i].Name.Within(nodes[0].Name) {
			return false
		}
		if nodes[i].Populated {
			return true
		}
	}
	return false
}

// errBlocked means that other containers may run on a container's own CPUs.
var errBlocked = errors.New("its CPUs may be in use by others")

// blockedError names the containers that block a start.
type blockedError struct {
	blockers []placement.Blocker
	// cause is why they could not be moved; nil if they were.
	cause error
}

func (e *blockedError) Error() string {
	var text []string
	for _, b := range e.blockers {
		text = append(text, b.String())
	}
	if e.cause != nil {
		text = append(text, e.cause.Error())
	}
	return strings.Join(text, "; ")
}

func (e *blockedError) Unwrap() []error {
	return []error{e.cause, errdefs.Unavailablef("%w", errBlocked)}
}

// passes returns whether the blocking containers will soon leave or show a process.
func (e *blockedError) passes() bool {
	for _, b := range e.blockers {
		if b.Phase != placement.Starting && b.Phase != placement.Created && b.Phase != placement.Stopping {
			return false
		}
	}
	return true
}

// waits returns whether an error may be gone after a short wait.
func waits(err error) bool {
	var blocked *blockedError
	return errors.Is(err, errPending) || errors.As(err, &blocked) && blocked.passes()
}

// clear makes sure that no other container runs on the own CPUs of a container before its
// start. It does nothing for a container without own CPUs. The caller holds mu.
func (l *Loop) clear(ctx context.Context, view *ledger.View, key placement.Key, owner ledger.Owner) error {
	if c, ok := l.tracker.Get(key); ok && !c.OwnCPUs.IsEmpty() {
		if err := l.knowSandboxes(ctx, view); err != nil {
			return fmt.Errorf("clear the CPUs for %s: %w", owner, err)
		}
	}
	blocked := l.tracker.Block(key, l.Now())
	if len(blocked) == 0 {
		return nil
	}
	l.moveAway(ctx, view, blocked)
	if len(l.tracker.Block(key, l.Now())) == 0 {
		return nil
	}
	err := l.follow(ctx, view, runtimeIDs(blocked))
	// The list may have shown the end of a pod's last container, so that the pod opens again.
	l.moveAway(ctx, view, slices.DeleteFunc(l.tracker.Block(key, l.Now()),
		func(b placement.Blocker) bool { return b.Cgroup == "" }))
	for _, b := range l.tracker.Block(key, l.Now()) {
		err = errors.Join(err, l.writer.lookAt(ctx, b.Key))
	}
	blockers := l.tracker.Block(key, l.Now())
	if len(blockers) == 0 {
		if err != nil {
			l.Log.DebugContext(ctx, "reconciling cgroups failed", "error", err) // the loop gets this error too, and reports it
			l.Wake()
		}
		return nil
	}
	return fmt.Errorf("clear the CPUs for %s: %w", owner, &blockedError{blockers, err})
}

// runtimeIDs returns the ids of containers that a runtime created.
func runtimeIDs(blockers []placement.Blocker) (ids []string) {
	for _, b := range blockers {
		if b.ID != "" {
			ids = append(ids, b.ID)
		}
	}
	return ids
}

// moveAway only writes CPUs, to the blocking containers, and reads no cgroup, so a start
// waits only for these writes. If that is not enough, follow does the rest. The loop reads
// the results. The caller holds mu.
func (l *Loop) moveAway(ctx context.Context, view *ledger.View, blockers []placement.Blocker) {
	var listed *listing // a runtime may answer an update of an unknown container without an error
	if ids := runtimeIDs(blockers); len(ids) > 0 && l.Runtime != nil {
		listed, _ = l.lister.syncRuntime(ctx, few(ids))
	}
	for _, b := range blockers {
		c, _ := l.tracker.Get(b.Key)
		late := c.Phase == placement.Running && l.tracker.InFlight(b.Key) // another write may still be carried out
		if c.AssignedCPUs == c.WantedCPUs && !late || c.WantedCPUs.IsEmpty() {
			continue // it is moved already, or its start may have read another set
		}
		var err error
		if b.Cgroup != "" {
			name := cgroup.ParseCgroupfs(b.Cgroup)
			l.drift.forget(name)
			err = l.writer.setCPUs(ctx, name, c.WantedCPUs)
		} else if bound, ok := view.Binding(b.ID); ok && c.Phase == placement.Running && listed != nil {
			v := cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, bound.Owner)}
			if name := l.tracker.cgroups[b.ID]; name != nil {
				l.drift.forget(name)
			}
			if err = l.tracker.granted(b.Key, &v); err == nil {
				err = l.calls.send(ctx, b.ID, v)
			}
		}
		if err != nil {
			l.Log.DebugContext(ctx, "moving a container from CPUs of another failed", "container", c.Name, "error", err)
		}
	}
	l.Wake()
}

// longWait is the wait of a start after which it is logged.
const longWait = time.Second

// untilClear repeats do while containers block it that will soon leave.
func (l *Loop) untilClear(ctx context.Context, what string, do func() error) error {
	long := time.NewTimer(longWait)
	defer long.Stop()
	var last error
	for {
		l.mu.Lock()
		freed := l.tracker.freed
		l.mu.Unlock()
		err := do()
		if last != nil && ctx.Err() != nil {
			return last
		}
		if last = err; !waits(err) {
			return err
		}
		poll := time.NewTimer(pollInterval)
		select {
		case <-freed:
		case <-poll.C:
		case <-long.C:
			l.Log.InfoContext(ctx, "waits for containers to leave its CPUs", "what", what, "error", err)
		case <-ctx.Done():
			poll.Stop()
			return err
		}
		poll.Stop()
	}
}

// ensureRuntimeContainer sends the values of a container to its runtime, after all other
// containers have left its CPUs. If the runtime does not have the container yet, the agent is
// about to create it, with the answer of PreStartContainer. The caller holds mu.
func (l *Loop) ensureRuntimeContainer(ctx context.Context, view *ledger.View, s admission.Start) error {
	b := s.Binding
	l.tracker.planStart(view, ofID(b.ID), s)
	if err := l.clear(ctx, view, ofID(b.ID), b.Owner); err != nil {
		return err
	}
	values, err := l.startValues(ctx, view, b)
	if err != nil {
		return err
	}
	if err := l.calls.send(ctx, b.ID, values); err != nil {
		return err
	}
	l.tracker.record(placement.Event{Kind: placement.Allow, Key: ofID(b.ID)}) // before another operation can see the container
	return nil
}

// Placements returns the state of a pod's containers that may run or wait for their start.
// It waits for a turn.
func (l *Loop) Placements(ctx context.Context, uid string) (out []placement.Container, err error) {
	if err := l.mu.enter(ctx); err != nil {
		return nil, err
	}
	defer l.mu.Unlock()
	l.lister.track()
	for c := range l.tracker.All() {
		if c.Owner.Pod == uid {
			out = append(out, c)
		}
	}
	return out, nil
}

// Phases returns the number of containers in each phase, at the end of the last pass. It
// does not wait.
func (l *Loop) Phases() map[placement.Phase]int {
	if counted := l.tracker.phases.Load(); counted != nil {
		return *counted
	}
	return nil
}
