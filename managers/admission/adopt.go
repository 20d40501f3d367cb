package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Adoption holds what Adopt commits.
type Adoption struct {
	Draft *ledger.Draft
	// Source names the origin of the claims in errors.
	Source string
	// Added lists the pods of the draft that are not in the ledger, and Extended those that
	// have more claims there.
	Added, Extended []string
}

// Adopt stores claims of running pods that were not planned here, in one commit. plan
// computes them on a view. It is called several times, and the last result is committed; it
// changes nothing, and its remote calls are repeated only with new inputs. what names the
// operation in errors.
//
// All pods of the list are locked. All operations take these locks in the same order. After
// an error the cgroups and claim records are as before.
func (e *Engine) Adopt(ctx context.Context, what string, uids []string,
	plan func(context.Context, *ledger.View) (Adoption, error)) (*ledger.View, error) {
	unlock, err := e.lockPods(ctx, uids)
	if err != nil {
		return nil, err
	}
	defer unlock()
	a := &adopting{
		engine: e, what: what, plan: plan, calls: e.liveCalls(), parents: map[string]string{}, placed: map[string]bool{},
		recorded: map[string][]ledger.Claim{},
	}
	defer func() {
		for uid := range a.parents {
			e.reserved.Drop(uid)
		}
	}()
	ctx = hint.WithCalls(ctx, a.calls)
	for attempt := 1; ; attempt++ {
		view, err := a.attempt(ctx)
		switch {
		case view != nil:
			return view, nil
		case err != nil && !errors.Is(err, ledger.ErrStale):
			return nil, errors.Join(err, a.undo.run())
		case attempt == e.Attempts:
			return nil, errors.Join(
				errdefs.Unavailablef("%s: the ledger moved during each of %d attempts", what, attempt), a.undo.run())
		}
	}
}

// WithReservations returns a view with the reservations of all pods except some.
func (e *Engine) WithReservations(view *ledger.View, except ...string) *ledger.View {
	view, _ = e.reserved.On(func() *ledger.View { return view }, except...)
	return view
}

// lockPods locks pods in the order of their uids.
func (e *Engine) lockPods(ctx context.Context, uids []string) (unlock func(), err error) {
	var locks cleanup
	unlock = func() { _ = locks.run() }
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(uids))) {
		one, err := e.LockPod(ctx, uid)
		if err != nil {
			unlock()
			return nil, err
		}
		locks.add(func() error { one(); return nil })
	}
	return unlock, nil
}

// adopting is a call of Adopt in progress.
type adopting struct {
	engine *Engine
	what   string
	plan   func(context.Context, *ledger.View) (Adoption, error)
	undo   cleanup
	// calls are the remote calls of the plan. parents are the cgroups of added pods by uid, empty where pods have none, and
	// before their creation; placed are the pods for which that is done. recorded is the content of claim records.
	calls    *hint.Calls
	parents  map[string]string
	placed   map[string]bool
	recorded map[string][]ledger.Claim
}

// attempt plans on the current view under the admission lock. It commits if all added pods
// have their cgroups, and all changed pods their claim records. Otherwise it reserves the
// claims of the added pods, creates cgroups and records without the lock, and returns nil;
// the same applies to remote calls. An error wrapping ledger.ErrStale means that the ledger
// has changed.
func (a *adopting) attempt(ctx context.Context) (*ledger.View, error) {
	planned, view, err := a.confirm(ctx)
	switch {
	case errors.Is(err, hint.ErrUnanswered):
		a.calls.Mode = hint.Live
		_, err = a.plan(ctx, a.engine.Ledger.View())
		return nil, err
	case err != nil || view != nil:
		return view, err
	}
	for _, uid := range planned.Added {
		if !a.placed[uid] {
			if err := a.place(ctx, planned, uid); err != nil {
				return nil, err
			}
		}
	}
	return nil, a.record(ctx, planned)
}

// confirm plans under the admission lock, and commits or reserves the plan. The view is nil
// without a commit.
func (a *adopting) confirm(ctx context.Context) (planned Adoption, view *ledger.View, err error) {
	release, err := a.engine.Acquire(ctx)
	if err != nil {
		return planned, nil, err
	}
	defer release()
	a.calls.Mode = hint.Replay
	if planned, err = a.plan(ctx, a.engine.Ledger.View()); err != nil {
		return planned, nil, err
	}
	ready := true
	for _, pod := range a.changed(planned) {
		ready = ready && a.isRecorded(pod)
	}
	for _, uid := range planned.Added {
		if !a.placed[uid] {
			ready = false
			pod, _ := planned.Draft.View().Pod(uid)
			a.parents[uid] = ""
			a.engine.reserved.Put(pod)
		}
	}
	if !ready {
		return planned, nil, nil
	}
	for _, uid := range planned.Added {
		pod, _ := planned.Draft.View().Pod(uid)
		record := *pod
		record.CgroupParent = a.parents[uid]
		record.Trace.Add(ledger.Step{Kind: ledger.StepPlaced, Text: "cgroup " + record.CgroupParent})
		record.Trace.Add(ledger.Step{Kind: ledger.StepCommitted})
		planned.Draft.PutPod(&record)
	}
	if view, err = a.engine.Ledger.Commit(ctx, planned.Draft); err != nil {
		return planned, nil, fmt.Errorf("%s %s: %w", a.what, planned.Source, err)
	}
	return planned, view, nil
}

// changed returns the pods of a plan that get a new claim record.
func (a *adopting) changed(planned Adoption) (pods []*ledger.Pod) {
	for _, uid := range slices.Concat(planned.Added, planned.Extended) {
		pod, _ := planned.Draft.View().Pod(uid)
		pods = append(pods, pod)
	}
	return pods
}

// isRecorded returns whether a pod's claim record already equals the planned claims.
func (a *adopting) isRecorded(pod *ledger.Pod) bool {
	claims, ok := a.recorded[pod.UID()]
	return ok && ledger.SameClaims(claims, pod.Claims)
}

// record writes the claim records of the changed pods.
func (a *adopting) record(ctx context.Context, planned Adoption) error {
	for _, pod := range a.changed(planned) {
		if a.isRecorded(pod) {
			continue
		}
		restore, err := a.engine.RecordClaims(ctx, planned.Draft.View(), pod.UID(), true)
		if err != nil {
			return fmt.Errorf("%s %s: %w", a.what, planned.Source, err)
		}
		a.undo.add(restore)
		a.recorded[pod.UID()] = pod.Claims
	}
	return nil
}

// place creates the cgroup of an added pod; with a kubelet it already exists.
func (a *adopting) place(ctx context.Context, planned Adoption, uid string) error {
	view, _ := a.engine.snapshot()
	parent, created, err := a.engine.CgroupManager.EnsurePod(ctx, view, uid)
	if created {
		undoing := context.WithoutCancel(ctx)
		a.undo.add(func() error { return a.engine.CgroupManager.ForgetPod(undoing, view, uid) })
	}
	if err != nil {
		return fmt.Errorf("%s %s: make the cgroup of pod %s: %w", a.what, planned.Source, uid, err)
	}
	a.parents[uid], a.placed[uid] = parent, true
	return nil
}
