package admission

import (
	"context"
	"errors"

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
// pods. After that the state is certain: every pod is in the ledger or recorded. An unknown
// pod that could not be removed, or on which another operation is in progress, stays
// recorded; the state stays uncertain if it was, and the error is of class Unavailable.
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
	sweep := &sweep{Engine: e, scope: req.Scope, alive: alive}
	return removed, errors.Join(append(errs, sweep.run(ctx))...)
}

// Synced returns whether the agent has called Sync since the start. Before that, processes
// are killed only for explicit calls.
func (e *Engine) Synced() bool { return e.synced.Load() }

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
