package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// SyncRequest lists the running pods.
type SyncRequest struct {
	// Living are the uids of the running pods.
	Living []string
	// Scope is the set of pods that the list covers.
	Scope
	// Known is the revision before which the author of the list knew all admissions.
	Known uint64
	// DryRun returns the pods to remove, and changes nothing.
	DryRun bool
}

// Sync removes every pod of the scope that is not in Living, and the cgroups of unknown
// pods, unless they belong, or may belong, to another owner. Pods admitted after the
// revision Known stay. Sync returns the uids of the removed pods, also with an error. An
// error is about the remaining pods, or is of class Precondition for a revision of another
// ledger.
//
// Running pods with a cgroup that are not in the ledger are recorded as unknown living
// pods. After that the state is certain: every pod is in the ledger or recorded.
func (e *Engine) Sync(ctx context.Context, req SyncRequest) (removed []string, err error) {
	e.waits(ctx)
	view := e.Ledger.View()
	if first, now := view.RevisionOf(0), view.Revision(); req.Known < first || req.Known > now {
		return nil, errdefs.Preconditionf("known_revision %d is not a revision of this ledger, which has %d to %d: "+
			"read the revision again, then list the living pods", req.Known, first, now).
			Coded(errdefs.RevisionUnknown)
	}
	alive := make(map[string]bool, len(req.Living))
	for _, uid := range req.Living {
		alive[uid] = true
	}
	dead := func(p *ledger.Pod) bool {
		return req.has(p.Agent()) && !alive[p.UID()] && view.RevisionOf(p.AdmittedGeneration) <= req.Known
	}
	var gone []string
	for p := range view.Pods() {
		if dead(p) {
			gone = append(gone, p.UID())
		}
	}
	if req.DryRun {
		return gone, nil
	}
	ok, errs := make([]bool, len(gone)), make([]error, len(gone), len(gone)+1)
	e.each(len(gone), func(i int) { _, ok[i], errs[i] = e.remove(ctx, gone[i], req.Scope, dead) })
	for i, uid := range gone {
		if ok[i] {
			removed = append(removed, uid)
		}
	}
	return removed, errors.Join(append(errs, e.sweep(ctx, req.Scope, alive))...)
}

// Synced returns whether the agent has called Sync since the start. Before that, processes
// are killed only for explicit calls.
func (e *Engine) Synced() bool { return e.synced.Load() }

// unknownPods returns the pods with a cgroup that are not in the ledger, and the recorded
// unknown living pods, which may have no visible cgroup.
func (e *Engine) unknownPods(ctx context.Context) ([]string, error) {
	view := e.Ledger.View()
	unknown, err := e.CgroupManager.UnknownPods(ctx, view)
	for u := range view.UnknownLivePods() {
		if !slices.Contains(unknown, u.UID) {
			unknown = append(unknown, u.UID)
		}
	}
	return unknown, err
}

// found returns what is known of pods that are not in the ledger.
func (e *Engine) found(ctx context.Context, unknown []string) (out []ledger.UnknownLivePod) {
	view, now := e.Ledger.View(), e.Now()
	for _, uid := range unknown {
		u, noted := view.UnknownLivePod(uid)
		if !noted {
			u = ledger.UnknownLivePod{UID: uid, Since: now}
		}
		if u.Source == "" && e.Lives != nil {
			since := u.Since
			u = e.Lives(ctx, uid)
			u.Since = since
		}
		out = append(out, u)
	}
	return out
}

// revert undoes changes of claims that were not acknowledged: the agent has received the
// acknowledged answers, and has not repeated these calls.
func (e *Engine) revert(d *ledger.Draft, scope Scope) {
	for p := range d.Base().Pods() {
		if p.Acknowledged == nil || !scope.has(p.Agent()) {
			continue
		}
		record := *p
		record.Claims, record.Acknowledged = p.Acknowledged, nil
		d.PutPod(&record)
	}
}

// each calls do for 0 to n-1, concurrently if possible, so that a pod that cannot be
// removed does not delay others.
func (e *Engine) each(n int, do func(i int)) {
	if e.Each != nil {
		e.Each(n, do)
		return
	}
	for i := range n {
		do(i)
	}
}

// keptAlive returns the pods outside the scope among those that are not in the ledger: pods of
// other owners, and, if another owner has pods here, pods with an unknown owner.
func (e *Engine) keptAlive(ctx context.Context, scope Scope, unknown []string) map[string]bool {
	keptAlive := map[string]bool{}
	if scope.All || len(unknown) == 0 {
		return keptAlive
	}
	alone := scope.alone(e.Ledger.View())
	for _, u := range e.found(ctx, unknown) {
		owner, known := u.Agent()
		keptAlive[u.UID] = known && !scope.has(owner) || !known && !alone
	}
	return keptAlive
}

// sweep removes cgroups without a pod, except those of running pods, and stores which pods
// these are.
func (e *Engine) sweep(ctx context.Context, scope Scope, alive map[string]bool) error {
	unknown, swept := e.unknownPods(ctx)
	keptAlive := e.keptAlive(ctx, scope, unknown)
	if swept == nil {
		errs := make([]error, len(unknown))
		e.each(len(unknown), func(i int) {
			if uid := unknown[i]; !alive[uid] && !keptAlive[uid] {
				errs[i] = e.removeUnknown(ctx, uid)
			}
		})
		swept = errors.Join(errs...)
	}
	if swept != nil {
		swept = fmt.Errorf("remove cgroups without a pod: %w", swept)
	}
	unknown = slices.DeleteFunc(unknown, func(uid string) bool { return !alive[uid] && !keptAlive[uid] })
	idle, release, looked := e.idle(ctx, unknown)
	defer release()
	found := e.found(ctx, unknown)
	_, err := e.update(ctx, func(d *ledger.Draft) error {
		var living []ledger.UnknownLivePod
		for _, u := range found {
			was := d.View()
			if rests, here := idle[u.UID]; rests || here && (was.Uncertain() != "" || was.UnknownLive(u.UID)) {
				living = append(living, u)
			}
		}
		e.revert(d, scope)
		if swept == nil {
			d.SetUncertain("")
		} else {
			// It is unknown whether the earlier ones are gone.
			for s := range d.View().UnknownLivePods() {
				living = append(living, s)
			}
		}
		d.SetUnknownLive(living...)
		for _, u := range living {
			if was, ok := d.View().UnknownLivePod(u.UID); ok && was.Source == "" && u.Source != "" {
				d.PutUnknownLive(u)
			}
		}
		return nil
	})
	if err == nil && swept == nil {
		e.synced.Store(true)
	}
	if err != nil {
		err = fmt.Errorf("note which pods live: %w", err)
	}
	return errors.Join(swept, looked, err)
}

// idle returns the unknown pods with a cgroup and without an operation in progress, and
// blocks operations on them until release is called. A pod with an operation is being added
// to the ledger, and its cgroup may be new. So it is recorded as living only if it may be
// older.
func (e *Engine) idle(ctx context.Context, unknown []string) (idle map[string]bool, release func(), err error) {
	var unlocks cleanup
	release = func() { _ = unlocks.run() }
	if len(unknown) == 0 {
		return nil, release, nil
	}
	held := map[string]bool{}
	for _, uid := range unknown {
		if unlock, ok := e.pods.try(uid); ok {
			held[uid] = true
			unlocks.add(func() error { unlock(); return nil })
		}
	}
	still, err := e.unknownPods(ctx)
	if err != nil {
		return held, release, fmt.Errorf("find out which pods live: %w", err)
	}
	idle = map[string]bool{}
	for _, uid := range still {
		idle[uid] = held[uid]
	}
	return idle, release, nil
}

// removeUnknown removes the cgroups of an unknown pod. A pod with an operation in progress
// is skipped, because an admission holds the pod's lock between the creation of the cgroup
// and the commit.
func (e *Engine) removeUnknown(ctx context.Context, uid string) error {
	unlock, ok := e.pods.try(uid)
	if !ok {
		return nil
	}
	defer unlock()
	return e.CgroupManager.RemoveUnknown(ctx, e.Ledger.View(), uid)
}

// suspect returns whether unknown pods may have claims on a view.
func suspect(view *ledger.View) bool {
	if view.Uncertain() != "" {
		return true
	}
	for range view.UnknownLivePods() {
		return true
	}
	return false
}
