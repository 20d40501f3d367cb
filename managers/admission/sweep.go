package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/berthd/berth/managers/admission/reservations"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

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

// sweep removes the pods that are not in the ledger, except the running ones, and stores
// which pods these are. It returns nil only if each of them is removed, stored, or being
// admitted now. Only then the state becomes certain.
func (e *Engine) sweep(ctx context.Context, scope Scope, alive map[string]bool) error {
	admissions := e.reserved.Since()
	defer admissions.End()
	unknown, err := e.unknownPods(ctx)
	keptAlive := e.keptAlive(ctx, scope, unknown)
	stays := func(uid string) bool { return alive[uid] || keptAlive[uid] }
	var removed []string
	if err == nil {
		removed, err = e.removeUnknown(ctx, admissions, slices.DeleteFunc(slices.Clone(unknown), stays))
	}
	running := slices.DeleteFunc(unknown, func(uid string) bool { return !stays(uid) })
	look := &secondLook{engine: e, admissions: admissions}
	if len(removed)+len(running) > 0 {
		look.begin(ctx, running)
	}
	defer look.release()
	found := e.found(ctx, running)
	var left error
	_, failed := e.Update(ctx, func(d *ledger.Draft) error {
		e.revert(d, scope)
		if left = errors.Join(err, look.err, look.store(d, removed, found)); left == nil {
			d.SetUncertain("")
		}
		return nil
	})
	if left != nil {
		left = fmt.Errorf("remove pods that are not in the ledger: %w", left)
	}
	if failed != nil {
		failed = fmt.Errorf("note which pods live: %w", failed)
	}
	if left == nil && failed == nil {
		e.synced.Store(true)
	}
	return errors.Join(left, failed)
}

// removeUnknown removes pods that are not in the ledger, and returns those that are removed.
// The error is about the others, except those that are new.
func (e *Engine) removeUnknown(ctx context.Context, admissions *reservations.Since, uids []string) (removed []string, err error) {
	ok, errs := make([]bool, len(uids)), make([]error, len(uids))
	e.each(len(uids), func(i int) {
		unlock, err := e.lockPodSoon(ctx, uids[i])
		if err != nil {
			if !e.isNew(admissions, uids[i]) {
				errs[i] = fmt.Errorf("pod %s: %w", uids[i], err)
			}
			return
		}
		defer unlock()
		errs[i] = e.CgroupManager.RemoveUnknown(ctx, e.Ledger.View(), uids[i])
		ok[i] = errs[i] == nil
	})
	for i, uid := range uids {
		if ok[i] {
			removed = append(removed, uid)
		}
	}
	return removed, errors.Join(errs...)
}

// toFinish is how long a Sync waits for another operation on a pod that is not in the
// ledger. The commit of an admission takes less; a removal whose processes do not end takes
// longer.
const toFinish = time.Second

// lockPodSoon is lockPod for a caller that has other pods to serve: it waits a short time. The
// error is of class Unavailable, or that of ctx.
func (e *Engine) lockPodSoon(ctx context.Context, uid string) (unlock func(), err error) {
	unlock, busy := e.TryLockPod(uid)
	if busy == nil || e.WithTimeout == nil {
		return unlock, busy
	}
	limited, cancel := e.WithTimeout(ctx, toFinish)
	defer cancel()
	if unlock, err = e.LockPod(limited, uid); err != nil && ctx.Err() == nil {
		err = busy
	}
	return unlock, err
}

// isNew returns whether a pod is in the ledger, or an admission since the sweep began has reserved claims for it, and
// whether no process of it can be older than that. Such a pod may be gone when the sweep ends: removed, or rejected.
func (e *Engine) isNew(admissions *reservations.Since, uid string) bool {
	had, view := admissions.Had(uid), e.Ledger.View()
	if _, known := view.Pod(uid); known {
		return true
	}
	return had && view.Uncertain() == "" && !view.UnknownLive(uid)
}

// secondLook is what is known of pods that are not in the ledger, right before this is stored.
type secondLook struct {
	engine     *Engine
	admissions *reservations.Since
	// idle are the running pods without an operation in progress. None begins before
	// release.
	idle    map[string]bool
	unlocks cleanup
	// here are the pods that have a cgroup, as far as err is nil.
	here map[string]bool
	err  error
}

// begin lists the cgroups again, with the locks of the running pods: a pod that has
// ended or was admitted since the first look is not noted.
func (l *secondLook) begin(ctx context.Context, running []string) {
	l.idle, l.here = map[string]bool{}, map[string]bool{}
	for _, uid := range running {
		if unlock, ok := l.engine.pods.TryLock(uid); ok {
			l.idle[uid] = true
			l.unlocks.add(func() error { unlock(); return nil })
		}
	}
	here, err := l.engine.CgroupManager.UnknownPods(ctx, l.engine.Ledger.View())
	if err != nil {
		l.err = fmt.Errorf("find out again which pods live: %w", err)
	}
	for _, uid := range here {
		l.here[uid] = true
	}
}

func (l *secondLook) release() { _ = l.unlocks.run() }

// store notes the running pods and forgets the removed ones. After a failed look none is
// forgotten. The error is about the pods for which that was not possible.
func (l *secondLook) store(d *ledger.Draft, removed []string, running []ledger.UnknownLivePod) error {
	var errs []error
	for _, uid := range removed {
		switch {
		case l.err != nil:
		case l.here[uid] && !l.engine.isNew(l.admissions, uid):
			errs = append(errs, errdefs.Unavailablef("pod %s has a cgroup again after its removal", uid))
		default:
			d.ForgetUnknownLive(uid)
		}
	}
	for _, u := range running {
		errs = append(errs, l.note(d, u))
	}
	return errors.Join(errs...)
}

// note stores a running pod that is not in the ledger. With an operation in progress it is
// noted only if it may be older than that.
func (l *secondLook) note(d *ledger.Draft, u ledger.UnknownLivePod) error {
	was, noted := d.View().UnknownLivePod(u.UID)
	switch {
	case noted && (was.Source != "" || u.Source == ""):
		return nil
	case noted, l.idle[u.UID] && (l.here[u.UID] || l.err != nil), l.here[u.UID] && d.View().Uncertain() != "":
		d.PutUnknownLive(u)
	case l.here[u.UID] && !l.engine.isNew(l.admissions, u.UID):
		return errdefs.Unavailablef("pod %s: another operation on the pod is in progress", u.UID)
	}
	return nil
}
