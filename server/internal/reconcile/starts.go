package reconcile

import (
	"cmp"
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

// longWait is the wait of a start after which it is logged.
const longWait = time.Second

// errBlocked means that other containers may run on a container's own CPUs.
var errBlocked = errors.New("its CPUs may be in use by others")

// starts gives containers their cgroups, once all others have left their own CPUs.
type starts struct {
	shared
	mu     turns // those of the Loop, which guard the others
	writer *writer
	calls  *calls
	wanted *wanted
	lister *lister
	// sandboxes must leave own CPUs, too.
	sandboxes *sandboxes
	// pass and follow make cgroups equal to a view, and wake requests a turn.
	pass   func(context.Context, *ledger.View) error
	follow func(ctx context.Context, view *ledger.View, also []string) error
	wake   func()
}

// EnsureContainer implements admission.CgroupManager. It waits for blocking containers that
// will leave soon.
func (st *starts) EnsureContainer(ctx context.Context, view *ledger.View, s admission.Start) (path string, err error) {
	b := s.Binding
	key := ofID(b.ID)
	if st.cfg.NoPodCgroups {
		if b.Own && s.PID == 0 {
			return b.CgroupPath, nil // an earlier configuration created it
		}
		if s.PID != 0 || st.cfg.Runtime == nil {
			return "", allowStart(s)
		}
	} else if st.cfg.Runtime == nil || s.PID != 0 {
		p, _, err := st.names.pod(view, b.Owner.Pod)
		if err != nil {
			return "", err
		}
		name, err := st.names.container(p, b.Owner.Container)
		if err != nil {
			return "", err
		}
		if b.CgroupPath, err = st.cfg.Layout.Literal(name); err != nil {
			return "", err
		}
		b.Own, key = true, ofCgroup(name)
	}
	s.Binding = b
	if err := st.mu.enter(ctx); err != nil {
		return "", err
	}
	st.tracker.beginStart(key)
	st.mu.Unlock()
	defer func() {
		st.mu.Lock()
		defer st.mu.Unlock()
		st.tracker.endStart(st.cfg.View(), key, b.ID)
	}()
	err = st.untilClear(ctx, "container "+b.Owner.String(), func() error { return st.ensureContainer(ctx, view, s) })
	if err != nil {
		return "", err
	}
	return b.CgroupPath, nil
}

func (st *starts) ensureContainer(ctx context.Context, view *ledger.View, s admission.Start) error {
	b := s.Binding
	if err := st.mu.enter(ctx); err != nil {
		return err
	}
	defer st.mu.Unlock()
	// A newer view may be written already; then it counts.
	if now := st.cfg.View(); now.Generation() > view.Generation() {
		view = now
	}
	p, pod, err := st.names.pod(view, b.Owner.Pod)
	if err != nil {
		return err
	}
	st.lister.track()
	if st.wanted.endLeaving(b.Owner.Pod, pod) {
		if err := st.follow(ctx, view, nil); err != nil {
			st.cfg.Log.ErrorContext(ctx, "reconciling cgroups failed", "error", err)
		}
	}
	if !b.Own {
		if err := st.kernel.thawed(ctx, pod, pod); err != nil {
			return err
		}
		if err := st.sandboxes.endOpening(ctx, view, b.Owner.Pod, b.ID); err != nil {
			return err
		}
		return st.ensureRuntimeContainer(ctx, view, s)
	}
	name := st.cfg.Layout.Driver().Parse(b.CgroupPath)
	node, err := cgroup.ContainerNode(view, b, st.cfg.QoS.Cgroup)
	if err != nil {
		return err
	}
	if err := st.sandboxes.endOpening(ctx, view, b.Owner.Pod, name.Base()); err != nil {
		return err
	}
	st.tracker.planStart(view, ofCgroup(name), s)
	if err := st.clear(ctx, view, ofCgroup(name), b.Owner); err != nil {
		return err
	}
	st.drift.forget(name)
	st.ending.revoke(name)
	created, err := st.cfg.Tree.Ensure(ctx, node)
	if err == nil && !created {
		err = st.kernel.revive(ctx, node)
	}
	st.writer.written(ctx, name, node.Values.CPUs, err)
	if err == nil {
		err = st.kernel.thawed(ctx, pod, name)
	}
	if err == nil && s.PID != 0 {
		err = st.moveProcess(ctx, p, b.Owner.Container, name, s.PID)
	}
	if err != nil {
		return err
	}
	for _, kind := range []placement.EventKind{placement.Allow, placement.ShownRunning} {
		st.tracker.record(placement.Event{Kind: kind, Key: ofCgroup(name)})
	}
	return nil
}

// ensureRuntimeContainer sends the values of a container to its runtime, after all other
// containers have left its CPUs. If the runtime does not have the container yet, the agent is
// about to create it, with the answer of PreStartContainer. The caller holds mu.
func (st *starts) ensureRuntimeContainer(ctx context.Context, view *ledger.View, s admission.Start) error {
	b := s.Binding
	st.tracker.planStart(view, ofID(b.ID), s)
	if err := st.clear(ctx, view, ofID(b.ID), b.Owner); err != nil {
		return err
	}
	values, err := st.startValues(ctx, view, b)
	if err != nil {
		return err
	}
	if err := st.calls.send(ctx, b.ID, values); err != nil {
		return err
	}
	st.tracker.record(placement.Event{Kind: placement.Allow, Key: ofID(b.ID)}) // before another operation can see the container
	return nil
}

// clear makes sure that no other container runs on the own CPUs of a container before its
// start. It does nothing for a container without own CPUs. The caller holds mu.
func (st *starts) clear(ctx context.Context, view *ledger.View, key placement.Key, owner ledger.Owner) error {
	if c, ok := st.tracker.Get(key); ok && !c.OwnCPUs.IsEmpty() {
		if err := st.knowSandboxes(ctx, view); err != nil {
			return fmt.Errorf("clear the CPUs for %s: %w", owner, err)
		}
	}
	blocked := st.tracker.Block(key, st.cfg.Now())
	if len(blocked) == 0 {
		return nil
	}
	st.moveAway(ctx, view, blocked)
	if len(st.tracker.Block(key, st.cfg.Now())) == 0 {
		return nil
	}
	err := st.follow(ctx, view, runtimeIDs(blocked))
	// The list may have shown the end of a pod's last container, so that the pod opens again.
	st.moveAway(ctx, view, slices.DeleteFunc(st.tracker.Block(key, st.cfg.Now()),
		func(b placement.Blocker) bool { return b.Cgroup == "" }))
	for _, b := range st.tracker.Block(key, st.cfg.Now()) {
		err = errors.Join(err, st.writer.lookAt(ctx, b.Key))
	}
	blockers := st.tracker.Block(key, st.cfg.Now())
	if len(blockers) == 0 {
		if err != nil {
			st.cfg.Log.DebugContext(ctx, "reconciling cgroups failed", "error", err) // the loop gets this error too, and reports it
			st.wake()
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
func (st *starts) moveAway(ctx context.Context, view *ledger.View, blockers []placement.Blocker) {
	var listed *listing // a runtime may answer an update of an unknown container without an error
	if ids := runtimeIDs(blockers); len(ids) > 0 && st.cfg.Runtime != nil {
		listed, _ = st.lister.syncRuntime(ctx, few(ids))
	}
	for _, b := range blockers {
		c, _ := st.tracker.Get(b.Key)
		late := c.Phase == placement.Running && st.tracker.InFlight(b.Key) // another write may still be carried out
		if c.AssignedCPUs == c.WantedCPUs && !late || c.WantedCPUs.IsEmpty() {
			continue // it is moved already, or its start may have read another set
		}
		var err error
		if b.Cgroup != "" {
			name := cgroup.ParseCgroupfs(b.Cgroup)
			st.drift.forget(name)
			err = st.writer.setCPUs(ctx, name, c.WantedCPUs)
		} else if bound, ok := view.Binding(b.ID); ok && c.Phase == placement.Running && listed != nil {
			v := cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, bound.Owner)}
			if name := st.tracker.cgroups[b.ID]; name != nil {
				st.drift.forget(name)
			}
			if err = st.tracker.granted(b.Key, &v); err == nil {
				err = st.calls.send(ctx, b.ID, v)
			}
		}
		if err != nil {
			st.cfg.Log.DebugContext(ctx, "moving a container from CPUs of another failed", "container", c.Name, "error", err)
		}
	}
	st.wake()
}

// untilClear repeats do while containers block it that will soon leave.
func (st *starts) untilClear(ctx context.Context, what string, do func() error) error {
	long := time.NewTimer(longWait)
	defer long.Stop()
	var last error
	for {
		st.mu.Lock()
		freed := st.tracker.freed
		st.mu.Unlock()
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
			st.cfg.Log.InfoContext(ctx, "waits for containers to leave its CPUs", "what", what, "error", err)
		case <-ctx.Done():
			poll.Stop()
			return err
		}
		poll.Stop()
	}
}

// knowSandboxes makes a pass if no pass had the runtime's list of all sandboxes yet.
func (st *starts) knowSandboxes(ctx context.Context, view *ledger.View) error {
	if st.sandboxes.sharers.known || st.cfg.Runtime == nil || st.cfg.NoPodCgroups {
		return nil
	}
	if err := st.pass(ctx, view); !st.sandboxes.sharers.known {
		return errdefs.Unavailablef("sandboxes of an earlier berthd may run: %w", cmp.Or(err, errAway))
	}
	return nil // the loop reports an error of the pass
}

// startValues returns the values that a container of a runtime starts with. The pod may have been resized after the
// agent has read the amounts with which the container was created, for example while the runtime pulled the image. If the
// container runs already, a memory limit below its use is left out. The caller holds mu.
func (st *starts) startValues(ctx context.Context, view *ledger.View, b ledger.Binding) (cgroup.Values, error) {
	p, _, err := st.names.pod(view, b.Owner.Pod)
	if err != nil {
		return cgroup.Values{}, err
	}
	values, ok := resizable(view, p, b.Owner.Container, st.cfg.QoS.Cgroup)
	if !ok {
		return cgroup.Values{Cpuset: cgroup.ContainerCpuset(view, b.Owner)}, nil
	}
	name, err := st.kernel.alive(ctx, view, b, st.tracker.cgroups[b.ID])
	if err != nil || name == nil {
		return values, err
	}
	seen, err := st.cfg.Tree.Observe(ctx, name, 0)
	if err != nil {
		return cgroup.Values{}, fmt.Errorf("observe the cgroup of container %s: %w", b.Owner, err)
	}
	nodes, _ := cgroup.HoldLimits([]cgroup.Node{{Name: name, Values: values}}, seen, func(cgroup.Name) bool { return true })
	return nodes[0].Values, nil
}

// moveProcess moves a process into a container's cgroup and sets its OOM score. If the kernel
// refuses the score (lowering needs CAP_SYS_RESOURCE), the agent has to set it; the answer
// of Allocate has it.
func (st *starts) moveProcess(ctx context.Context, p *ledger.Pod, container string, name cgroup.Name, pid int) error {
	if st.cfg.StillThere != nil {
		if err := st.cfg.StillThere(ctx, pid); err != nil {
			return err
		}
	}
	if err := st.cfg.Tree.Move(ctx, name, pid); err != nil {
		return err
	}
	if st.cfg.SetScore == nil {
		return nil
	}
	score := cgroup.ContainerResources(&p.Pod, p.Pod.Container(container), st.cfg.QoS.Cgroup, false).OOMScoreAdj
	err := st.cfg.SetScore(pid, score)
	if errdefs.ClassOf(err) == errdefs.NotFound {
		return err
	}
	if err != nil {
		st.cfg.Log.WarnContext(ctx, "a process keeps its score of the out-of-memory killer",
			"pod", p.UID(), "container", container, "pid", pid, "score", score, "error", err)
	}
	return nil
}

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

// allowStart is EnsureContainer for a container whose cgroup is created neither by berth
// nor by its runtime. A process can only be moved by the program that creates the cgroup.
func allowStart(s admission.Start) error {
	if s.PID == 0 {
		return nil
	}
	return errdefs.Preconditionf("process %d cannot be placed: with cgroups.cgroupsPerQOS (--cgroups-per-qos) false berthd makes no cgroup; "+
		"leave the pid out, and put the process into a cgroup with the values that Allocate answers", s.PID)
}
