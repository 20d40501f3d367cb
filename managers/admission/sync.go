package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// SyncRequest says which pods live.
type SyncRequest struct {
	// Living are the uids of the living pods.
	Living []string
	// Scope says of whose pods the list is.
	Scope
	// Known is the revision up to which whoever made the list knew of admissions.
	Known uint64
	// DryRun tells who would be removed, and changes nothing.
	DryRun bool
}

// Sync removes every pod of the scope that is not among the living, and the cgroups of
// pods that nobody knows, unless they are another owner's, or may be. Pods that came after the revision Known are let live. It
// returns the uids of the removed pods, also with an error, which concerns those
// that are left, or is of class Precondition for a revision of another ledger.
//
// Living pods that have a cgroup here and are not known are noted as such from then on. The
// state is certain with that: every pod here is known, or noted.
func (e *Engine) Sync(ctx context.Context, req SyncRequest) (removed []string, err error) {
	e.waits(ctx)
	view := e.Ledger.View()
	if first, now := view.RevisionOf(0), view.Revision(); req.Known < first || req.Known > now {
		return nil, errdefs.Preconditionf("revision %d, up to which the list of living pods knows of admissions, "+
			"is not one of this ledger, which has those from %d to %d: read the revision again, then make the list", req.Known, first, now).
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

// Synced reports whether the agent has said since the start which pods live. Before that
// no process is ended that nobody has asked to end.
func (e *Engine) Synced() bool { return e.synced.Load() }

// unknownPods lists the pods that have a cgroup here and are not in the ledger, and those
// that are noted as living, which may have no cgroup that can be seen.
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
			if e.Lives != nil {
				u = e.Lives(ctx, uid)
			}
		}
		out = append(out, u)
	}
	return out
}

// revert takes back what pods hold by changes that nobody was told of: the agent has
// heard what it was told, and has not repeated them.
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

// each calls do for 0 to n-1, side by side where that is possible: a pod that cannot
// be removed holds up no other.
func (e *Engine) each(n int, do func(i int)) {
	if e.Each != nil {
		e.Each(n, do)
		return
	}
	for i := range n {
		do(i)
	}
}

// spared returns which of the pods that are not in the ledger the scope has no say about:
// those of other owners, and where another owner has pods here, those of which nothing
// tells whose they are.
func (e *Engine) spared(ctx context.Context, scope Scope, unknown []string) map[string]bool {
	spared := map[string]bool{}
	if scope.All || len(unknown) == 0 {
		return spared
	}
	alone := scope.alone(e.Ledger.View())
	for _, u := range e.found(ctx, unknown) {
		owner, told := u.Agent()
		spared[u.UID] = told && !scope.has(owner) || !told && !alone
	}
	return spared
}

// sweep removes cgroups without a pod, but not those of living pods, and makes it
// last which those are.
func (e *Engine) sweep(ctx context.Context, scope Scope, alive map[string]bool) error {
	unknown, swept := e.unknownPods(ctx)
	spared := e.spared(ctx, scope, unknown)
	if swept == nil {
		errs := make([]error, len(unknown))
		e.each(len(unknown), func(i int) {
			if uid := unknown[i]; !alive[uid] && !spared[uid] {
				errs[i] = e.removeUnknown(ctx, uid)
			}
		})
		swept = errors.Join(errs...)
	}
	if swept != nil {
		swept = fmt.Errorf("remove cgroups without a pod: %w", swept)
	}
	unknown = slices.DeleteFunc(unknown, func(uid string) bool { return !alive[uid] && !spared[uid] })
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
			// Nobody has seen whether those of before are gone.
			for s := range d.View().UnknownLivePods() {
				living = append(living, s)
			}
		}
		d.SetUnknownLive(living...)
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

// idle tells of unknown pods that have a cgroup whether no operation on them is under
// way, and keeps it so until release is called. One with an operation is on its way
// into the ledger, and its cgroup may be new: it is noted as living only if it may
// have been here before.
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

// removeUnknown removes the cgroups of a pod that is not known. A pod with an
// operation under way is left alone: between its cgroup and its commit an admission
// holds the pod's lock.
func (e *Engine) removeUnknown(ctx context.Context, uid string) error {
	unlock, ok := e.pods.try(uid)
	if !ok {
		return nil
	}
	defer unlock()
	return e.CgroupManager.RemoveUnknown(ctx, e.Ledger.View(), uid)
}

// suspect reports whether somebody who is not known may hold something on a view.
func suspect(view *ledger.View) bool {
	if view.Uncertain() != "" {
		return true
	}
	for range view.UnknownLivePods() {
		return true
	}
	return false
}
