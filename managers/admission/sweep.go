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

// sweep removes the pods that are not in the ledger, for one call of Sync.
type sweep struct {
	*Engine
	scope Scope
	// alive are the pods of the caller's list.
	alive map[string]bool
	// admissions are those since the sweep began.
	admissions *reservations.Since
}

// unknownPods returns the pods with a cgroup that are not in the ledger, and the recorded
// unknown living pods, which may have no visible cgroup.
func (s *sweep) unknownPods(ctx context.Context) ([]string, error) {
	view := s.Ledger.View()
	unknown, err := s.CgroupManager.UnknownPods(ctx, view)
	for u := range view.UnknownLivePods() {
		if !slices.Contains(unknown, u.UID) {
			unknown = append(unknown, u.UID)
		}
	}
	return unknown, err
}

// found returns what is known of pods that are not in the ledger.
func (s *sweep) found(ctx context.Context, unknown []string) (out []ledger.UnknownLivePod) {
	view, now := s.Ledger.View(), s.Now()
	for _, uid := range unknown {
		u, noted := view.UnknownLivePod(uid)
		if !noted {
			u = ledger.UnknownLivePod{UID: uid, Since: now}
		}
		if u.Source == "" && s.Lives != nil {
			since := u.Since
			u = s.Lives(ctx, uid)
			u.Since = since
		}
		out = append(out, u)
	}
	return out
}

// keptAlive returns the pods outside the scope among those that are not in the ledger: pods of
// other owners, and, if another owner has pods here, pods with an unknown owner.
func (s *sweep) keptAlive(ctx context.Context, unknown []string) map[string]bool {
	keptAlive := map[string]bool{}
	if s.scope.All || len(unknown) == 0 {
		return keptAlive
	}
	alone := s.scope.alone(s.Ledger.View())
	for _, u := range s.found(ctx, unknown) {
		owner, known := u.Agent()
		keptAlive[u.UID] = known && !s.scope.has(owner) || !known && !alone
	}
	return keptAlive
}

// run removes the pods that are not in the ledger, except the running ones, and stores
// which pods these are. It returns nil only if each of them is removed, stored, or being
// admitted now. Only then the state becomes certain.
func (s *sweep) run(ctx context.Context) error {
	s.admissions = s.reserved.Since()
	defer s.admissions.End()
	unknown, err := s.unknownPods(ctx)
	keptAlive := s.keptAlive(ctx, unknown)
	stays := func(uid string) bool { return s.alive[uid] || keptAlive[uid] }
	var removed []string
	if err == nil {
		removed, err = s.removeUnknown(ctx, slices.DeleteFunc(slices.Clone(unknown), stays))
	}
	running := slices.DeleteFunc(unknown, func(uid string) bool { return !stays(uid) })
	look := &secondLook{sweep: s}
	if len(removed)+len(running) > 0 {
		look.begin(ctx, running)
	}
	defer look.release()
	found := s.found(ctx, running)
	var left error
	_, failed := s.Update(ctx, func(d *ledger.Draft) error {
		s.revert(d)
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
		s.synced.Store(true)
	}
	return errors.Join(left, failed)
}

// removeUnknown removes pods that are not in the ledger, and returns those that are removed.
// The error is about the others, except those that are new.
func (s *sweep) removeUnknown(ctx context.Context, uids []string) (removed []string, err error) {
	ok, errs := make([]bool, len(uids)), make([]error, len(uids))
	s.each(len(uids), func(i int) {
		unlock, err := s.lockPodSoon(ctx, uids[i])
		if err != nil {
			if !s.isNew(uids[i]) {
				errs[i] = fmt.Errorf("pod %s: %w", uids[i], err)
			}
			return
		}
		defer unlock()
		errs[i] = s.CgroupManager.RemoveUnknown(ctx, s.Ledger.View(), uids[i])
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

// lockPodSoon is LockPod for a caller that has other pods to serve: it waits a short time. The
// error is of class Unavailable, or that of ctx.
func (s *sweep) lockPodSoon(ctx context.Context, uid string) (unlock func(), err error) {
	unlock, busy := s.TryLockPod(uid)
	if busy == nil || s.WithTimeout == nil {
		return unlock, busy
	}
	limited, cancel := s.WithTimeout(ctx, toFinish)
	defer cancel()
	if unlock, err = s.LockPod(limited, uid); err != nil && ctx.Err() == nil {
		err = busy
	}
	return unlock, err
}

// isNew returns whether a pod is in the ledger, or an admission since the sweep began has reserved claims for it, and
// whether no process of it can be older than that. Such a pod may be gone when the sweep ends: removed, or rejected.
func (s *sweep) isNew(uid string) bool {
	had, view := s.admissions.Had(uid), s.Ledger.View()
	if _, known := view.Pod(uid); known {
		return true
	}
	return had && view.Uncertain() == "" && !view.UnknownLive(uid)
}

// revert undoes changes of claims that were not acknowledged: the agent has received the
// acknowledged answers, and has not repeated these calls.
func (s *sweep) revert(d *ledger.Draft) {
	for p := range d.Base().Pods() {
		if p.Acknowledged == nil || !s.scope.has(p.Agent()) {
			continue
		}
		record := *p
		record.Claims, record.Acknowledged = p.Acknowledged, nil
		d.PutPod(&record)
	}
}

// secondLook is what is known of pods that are not in the ledger, right before this is stored.
type secondLook struct {
	*sweep
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
		if unlock, ok := l.pods.TryLock(uid); ok {
			l.idle[uid] = true
			l.unlocks.add(func() error { unlock(); return nil })
		}
	}
	here, err := l.CgroupManager.UnknownPods(ctx, l.Ledger.View())
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
		case l.here[uid] && !l.isNew(uid):
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
	case l.here[u.UID] && !l.isNew(u.UID):
		return errdefs.Unavailablef("pod %s: another operation on the pod is in progress", u.UID)
	}
	return nil
}
