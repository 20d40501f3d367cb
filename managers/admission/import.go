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

// Import is a request to import a kubelet's state file.
type Import struct {
	Kind kubelet.Kind
	Data []byte
	// Settings of the kind's manager.
	Settings kubelet.Settings
	// Owner is the agent of pods that are not in the ledger; empty means
	// ledger.DefaultOwner.
	Owner string
	// Pods in the file, as the caller sent them, before defaulting.
	Pods []workload.Pod
	// ContainerIDs and SkipUnknown are as in kubelet.Input.
	ContainerIDs map[string]ledger.Owner
	SkipUnknown  bool
	DryRun       bool
}

// Outcomes of a pod of an import.
const (
	// ImportNew: the pod was not in the ledger.
	ImportNew = "new"
	// ImportExtended: some of the pod's claims were not in the ledger.
	ImportExtended = "extended"
	// ImportKnown: all claims were in the ledger.
	ImportKnown = "known"
)

// ImportedPod is one pod of an import.
type ImportedPod struct {
	Pod     *ledger.Pod
	Outcome string
}

// Imported is the result of an import.
type Imported struct {
	Facts kubelet.Facts
	// Pods in the order of their uids.
	Pods []ImportedPod
	// Findings about imported claims that the current rules would not allow. The claims are
	// stored, as at a start.
	Findings []ledger.Finding
	// View with the import; in a dry run the draft's view.
	View *ledger.View
}

// Import stores the facts of a state file in one commit, or nothing. The facts describe
// running pods, so the rules cannot refuse them; violations are reported. A pod in the
// ledger keeps its claims.
//
// Errors are those of kubelet.Read, and of class Invalid for invalid pods, Precondition for
// a pod that is in the ledger with another specification, and if two owners have the same
// claim; the error names them.
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
	i.calls = e.calls()
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

// importing is an import in progress.
type importing struct {
	Import
	engine *Engine
	bus    *hint.Bus
	// given are the records of the caller's pods, and notes their changes by defaulting, by
	// uid.
	given map[string]*ledger.Pod
	notes map[string][]string
	undo  cleanup
	// calls are the remote calls of validators. parents are the cgroups of new pods by uid,
	// empty before their creation. recorded is the content of claim records.
	calls    *hint.Calls
	parents  map[string]string
	recorded map[string][]ledger.Claim

	// The fields below belong to one attempt.
	view  *ledger.View
	draft *ledger.Draft
	out   Imported
}

// readPods creates records of the caller's pods, as an admission would.
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

// lockPods locks all pods that the import may change: the caller's pods, and the pods in
// the file. All imports take the locks in the same order.
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

// attempt plans on the current view under the admission lock. It commits if all new pods
// have their cgroups, and all changed pods their claim records. Otherwise it reserves the
// claims of the new pods, creates cgroups and records without the lock, and returns false;
// the same applies to remote calls. An error wrapping ledger.ErrStale means that the ledger
// has changed.
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

// isRecorded returns whether a pod's claim record already equals the imported claims.
func (i *importing) isRecorded(p ImportedPod) bool {
	claims, ok := i.recorded[p.Pod.UID()]
	return p.Outcome == ImportKnown || ok && ledger.SameClaims(claims, p.Pod.Claims)
}

// record writes the claim records of the changed pods.
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

// place creates the cgroup of a new pod; with a kubelet it already exists.
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
