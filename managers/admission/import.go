package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/kubelet"
	"github.com/berthd/berth/managers/workload"
)

// Import asks to take over what a kubelet's state file says.
type Import struct {
	Kind kubelet.Kind
	Data []byte
	// Settings of the kind's manager.
	Settings kubelet.Settings
	// Owner is whose pods those become that the ledger does not know; empty means
	// ledger.DefaultOwner.
	Owner string
	// Pods that the file speaks of, as the caller sent them, before defaulting.
	Pods []workload.Pod
	// ContainerIDs and SkipUnknown are as in kubelet.Input.
	ContainerIDs map[string]ledger.Owner
	SkipUnknown  bool
	DryRun       bool
}

// Outcomes of a pod of an import.
const (
	// ImportNew: the ledger did not know the pod.
	ImportNew = "new"
	// ImportExtended: the ledger did not know all that the pod holds.
	ImportExtended = "extended"
	// ImportKnown: the ledger knew all of it.
	ImportKnown = "known"
)

// ImportedPod is one pod of an import.
type ImportedPod struct {
	Pod     *ledger.Pod
	Outcome string
}

// Imported is the outcome of an import.
type Imported struct {
	Facts kubelet.Facts
	// Pods in order of their uids.
	Pods []ImportedPod
	// Findings about imported claims that today's rules would not allow. They
	// are kept, as at a start.
	Findings []ledger.Finding
	// View with the import; a dry run's is that of its draft.
	View *ledger.View
}

// Import takes over what a state file says, in one commit or not at all. The file
// tells what is the case, so nobody is asked whether it may be: what the rules
// would not allow is reported. A pod of the ledger keeps what it has.
//
// Errors are those of kubelet.Read, and of class Invalid for pods that are not
// well-formed, Precondition for a pod that the ledger knows with another
// specification, and where two owners hold the same thing, which are named.
func (e *Engine) Import(ctx context.Context, req Import) (Imported, error) {
	i := &importing{Import: req, engine: e, given: map[string]*ledger.Pod{}, notes: map[string][]string{}, parents: map[string]string{}, recorded: map[string][]ledger.Claim{}}
	if err := i.readPods(); err != nil {
		return Imported{}, err
	}
	if req.DryRun {
		i.begin(e.Ledger.View())
		return i.out, i.plan(ctx)
	}
	unlock, err := i.lockPods(ctx)
	if err != nil {
		return Imported{}, err
	}
	defer unlock()
	defer func() {
		for uid := range i.parents {
			e.reserved.drop(uid)
		}
	}()
	i.calls = &hint.Calls{}
	ctx = hint.WithCalls(ctx, i.calls)
	for attempt := 1; ; attempt++ {
		done, err := i.attempt(ctx)
		switch {
		case done:
			return i.out, nil
		case err != nil && !errors.Is(err, ledger.ErrStale):
			return Imported{}, errors.Join(err, i.undo.run())
		case attempt == e.Attempts:
			return Imported{}, errors.Join(
				errdefs.Unavailablef("import: the ledger moved during each of %d attempts", attempt), i.undo.run())
		}
	}
}

// importing is an import on its way.
type importing struct {
	Import
	engine *Engine
	bus    *hint.Bus
	// given are the records of the pods that the caller sent, and notes what
	// defaulting did to them, by uid.
	given map[string]*ledger.Pod
	notes map[string][]string
	undo  cleanup
	// calls are the remote calls of validators, parents the cgroups of new pods, by uid,
	// empty while one is not made, and recorded what claim records tell.
	calls    *hint.Calls
	parents  map[string]string
	recorded map[string][]ledger.Claim

	// Of one attempt.
	view  *ledger.View
	draft *ledger.Draft
	out   Imported
}

// readPods makes records of the pods that were sent, as an admission would.
func (i *importing) readPods() error {
	e := i.engine
	for n, sent := range i.Pods {
		pod, notes := workload.Defaulted(sent, e.Features)
		if err := workload.Validate(&pod, e.Bounds); err != nil {
			return err
		}
		pod.QoS = pod.QoSClass(e.Features)
		digest, err := pod.Digest()
		if err != nil {
			return fmt.Errorf("import pod %s: %w", &pod, err)
		}
		if i.given[pod.UID] != nil {
			var vs errdefs.Violations
			vs.Addf(fmt.Sprintf("pods[%d].metadata.uid", n), "pod %s is given twice", pod.UID)
			return vs.Err("request")
		}
		i.given[pod.UID] = &ledger.Pod{
			Pod: pod, Digest: digest, QoS: pod.QoS, OwnedBy: ledger.OwnedByOf(i.Owner), AdmissionID: e.NewID(), AdmittedAt: e.Now(),
		}
		i.notes[pod.UID] = notes
	}
	return nil
}

// lockPods locks all pods that the import may change: those that were sent, and those that
// the file names, as they may be known. One import takes the locks in the order of another.
func (i *importing) lockPods(ctx context.Context) (unlock func(), err error) {
	facts, err := i.read(i.engine.Ledger.View(), true)
	if err != nil {
		return nil, err
	}
	var locks cleanup
	unlock = func() { _ = locks.run() }
	uids := slices.Concat(facts.Pods, slices.Collect(maps.Keys(i.given)))
	slices.Sort(uids)
	for _, uid := range slices.Compact(uids) {
		one, err := i.engine.lockPod(ctx, uid)
		if err != nil {
			unlock()
			return nil, err
		}
		locks.add(func() error { one(); return nil })
	}
	return unlock, nil
}

func (i *importing) begin(view *ledger.View) {
	i.view, i.draft, i.out = view, ledger.NewDraft(view), Imported{}
	i.bus, _ = i.engine.Managers(view)
}

// attempt plans on the current view under the admission lock, and commits if all new
// pods have their cgroups, and all that change their claim records. Otherwise it reserves
// what the new ones hold and makes these without the lock, as it makes remote calls; then
// it is not done. An error wrapping ledger.ErrStale means that the ledger moved.
func (i *importing) attempt(ctx context.Context) (done bool, err error) {
	placed, err := i.confirm(ctx)
	switch {
	case errors.Is(err, hint.ErrUnanswered):
		i.begin(i.view)
		i.calls.Mode = hint.Live
		return false, i.plan(ctx)
	case err != nil || placed:
		return placed, err
	}
	for _, p := range i.out.Pods {
		if p.Outcome == ImportNew && i.parents[p.Pod.UID()] == "" {
			if err := i.place(ctx, p.Pod); err != nil {
				return false, err
			}
		}
	}
	return false, i.record(ctx)
}

func (i *importing) confirm(ctx context.Context) (placed bool, err error) {
	release, err := i.engine.acquire(ctx)
	if err != nil {
		return false, err
	}
	defer release()
	i.begin(i.engine.Ledger.View())
	i.calls.Mode = hint.Replay
	if err := i.plan(ctx); err != nil {
		return false, err
	}
	placed = true
	for _, p := range i.out.Pods {
		placed = placed && i.isRecorded(p)
		if p.Outcome == ImportNew && i.parents[p.Pod.UID()] == "" {
			placed = false
			i.parents[p.Pod.UID()] = ""
			i.engine.reserved.put(p.Pod)
		}
	}
	if !placed {
		return false, nil
	}
	for n, p := range i.out.Pods {
		if p.Outcome != ImportNew {
			continue
		}
		record := *p.Pod
		record.CgroupParent = i.parents[p.Pod.UID()]
		record.Trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + record.CgroupParent})
		record.Trace.Add(ledger.Step{Kind: ledger.StepCommitted})
		i.draft.PutPod(&record)
		i.out.Pods[n].Pod = &record
	}
	view, err := i.engine.Ledger.Commit(ctx, i.draft)
	if err != nil {
		return false, fmt.Errorf("import %s: %w", i.out.Facts.File, err)
	}
	i.out.View = view
	return true, nil
}

// isRecorded reports whether a pod's claim record tells what the import leaves it.
func (i *importing) isRecorded(p ImportedPod) bool {
	claims, ok := i.recorded[p.Pod.UID()]
	return p.Outcome == ImportKnown || ok && ledger.SameClaims(claims, p.Pod.Claims)
}

// record writes the claim records of the pods that the import changes.
func (i *importing) record(ctx context.Context) error {
	for _, p := range i.out.Pods {
		if i.isRecorded(p) {
			continue
		}
		restore, err := i.engine.CgroupManager.RecordClaims(ctx, i.out.View, p.Pod.UID(), true)
		if err != nil {
			return fmt.Errorf("import %s: record what pod %s holds: %w", i.out.Facts.File, p.Pod.UID(), err)
		}
		i.undo.add(restore)
		i.recorded[p.Pod.UID()] = p.Pod.Claims
	}
	return nil
}

// place makes the cgroup of a new pod; under a kubelet it is there already.
func (i *importing) place(ctx context.Context, pod *ledger.Pod) error {
	view, _ := i.engine.snapshot()
	parent, created, err := i.engine.CgroupManager.EnsurePod(ctx, view, pod.UID())
	if created {
		undoing := context.WithoutCancel(ctx)
		i.undo.add(func() error { return i.engine.CgroupManager.ForgetPod(undoing, view, pod.UID()) })
	}
	if err != nil {
		return fmt.Errorf("import %s: make the cgroup of pod %s: %w", i.out.Facts.File, pod.UID(), err)
	}
	i.parents[pod.UID()] = parent
	return nil
}
