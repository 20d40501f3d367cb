package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/workload"
)

// classes are the QoS classes, each with a tier of its own.
var classes = workload.QoSClasses

// The failpoints of this package, in the order of an admission.
const (
	BeforeRecord = "reconcile/before-record"
	AfterRecord  = "reconcile/after-record"
)

// Failpoints returns all failpoints of this package.
func Failpoints() []string { return []string{BeforeRecord, AfterRecord} }

// recordLog has the written claim record of each pod's cgroup, and the view whose changes
// have been written. Guarded by Loop.mu.
type recordLog struct {
	seed    maphash.Seed
	written map[string]writtenRecord
	view    *ledger.View
	// due are the uids of pods whose records have to be written.
	due []string
}

// writtenRecord is the hash of a record, and the generation for which it was written.
type writtenRecord struct {
	hash       uint64
	generation uint64
}

// recordsAtOnce limits the records written in one turn. If no record exists, for example on
// a copy of the ledger, the first start has to write one for each pod; other operations
// must not wait for all of them.
const recordsAtOnce = 64

func (b *recordLog) note(uid string, record []byte, generation uint64) {
	if b.written == nil {
		b.seed, b.written = maphash.MakeSeed(), map[string]writtenRecord{}
	}
	b.written[uid] = writtenRecord{maphash.Bytes(b.seed, record), generation}
}

func (b *recordLog) holds(uid string, record []byte) bool {
	w, ok := b.written[uid]
	return ok && record != nil && w.hash == maphash.Bytes(b.seed, record)
}

// restoreRecord writes the record again that a pod had before a failed admission.
func (l *Loop) restoreRecord(ctx context.Context, uid string, name cgroup.Name, before []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.records.written, uid)
	// The old record lacks later commits.
	l.records.due = append(l.records.due, uid)
	l.Wake()
	return l.Records.WriteRecord(ctx, name, before)
}

// followRecords writes the claim records of the pods that have changed since its last call.
// The caller holds mu.
func (l *Loop) followRecords(ctx context.Context, view *ledger.View) {
	last := l.records.view
	if l.Records == nil || last == nil {
		return
	}
	if last.EpochID() != view.EpochID() {
		l.renewRecords(view)
		return
	}
	uids := map[string]bool{}
	for _, c := range ledger.Changes(last, view) {
		if c.Pod != nil {
			uids[c.Pod.UID()] = true
		} else {
			uids[c.Binding.Owner.Pod] = true
		}
	}
	l.records.view = view
	for uid := range uids {
		p, ok := view.Pod(uid)
		if !ok {
			delete(l.records.written, uid)
			continue
		}
		if err := l.writeRecord(ctx, view, p); err != nil {
			l.records.view = nil // the next pass compares all records
			l.Log.ErrorContext(ctx, "writing a pod's claim record failed", "uid", uid, "error", err)
		}
	}
}

// renewRecords has the records of all pods written again, which name a former epoch. The
// record of a change that is being committed stays: the commit writes it again. The caller
// holds mu.
func (l *Loop) renewRecords(view *ledger.View) {
	l.records.view, l.records.due = view, l.records.due[:0]
	for p := range view.Pods() {
		if l.records.written[p.UID()].generation <= p.ChangedGeneration {
			delete(l.records.written, p.UID())
		}
		l.records.due = append(l.records.due, p.UID())
	}
	l.Wake()
}

// repairRecords reads the claim record of every pod. Missing and changed records are due
// again: systemd may have created a pod's slice again. The caller holds mu.
func (l *Loop) repairRecords(ctx context.Context, view *ledger.View) {
	if l.Records == nil {
		return
	}
	if l.followRecords(ctx, view); l.records.view == nil {
		clear(l.records.written) // a change may not have been written
	}
	l.records.view, l.records.due = view, l.records.due[:0]
	for p := range view.Pods() {
		_, name, err := l.names.pod(view, p.UID())
		if err != nil || l.leaving[p.UID()] {
			continue
		}
		have, err := l.Records.ReadRecord(ctx, name)
		if err == nil && l.records.holds(p.UID(), have) {
			continue
		}
		delete(l.records.written, p.UID())
		r := claimrecord.New(view, p, p.ChangedGeneration)
		if want, failed := r.Encode(); failed == nil && err == nil && bytes.Equal(have, want) {
			l.records.note(p.UID(), have, r.Generation) // written by an earlier berthd
			continue
		}
		l.records.due = append(l.records.due, p.UID())
	}
	l.writeDue(ctx, view)
}

// recordsDue returns whether there are claim records to write.
func (l *Loop) recordsDue() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.records.due) > 0
}

// WriteDue writes some of the due claim records.
func (l *Loop) WriteDue(ctx context.Context) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.mu.Unlock()
	l.writeDue(ctx, l.View())
	return nil
}

// writeDue writes at most recordsAtOnce due records. The caller holds mu.
func (l *Loop) writeDue(ctx context.Context, view *ledger.View) {
	n := min(len(l.records.due), recordsAtOnce)
	for _, uid := range l.records.due[:n] {
		p, ok := view.Pod(uid)
		if !ok {
			continue
		}
		if err := l.writeRecord(ctx, view, p); err != nil {
			l.records.view = nil // the next pass compares all records
			l.Log.ErrorContext(ctx, "writing a pod's claim record failed", "uid", uid, "error", err)
		}
	}
	l.records.due = l.records.due[n:]
}

// writeRecord writes the claim record of a pod, unless it is written already, or a record
// of a later change that is being committed is. A pod without a cgroup gets its record
// together with the cgroup. The caller holds mu.
func (l *Loop) writeRecord(ctx context.Context, view *ledger.View, p *ledger.Pod) error {
	_, name, err := l.names.pod(view, p.UID())
	if err != nil || l.leaving[p.UID()] {
		return err
	}
	if l.records.written[p.UID()].generation > p.ChangedGeneration {
		return nil
	}
	r := claimrecord.New(view, p, p.ChangedGeneration)
	record, err := r.Encode()
	if err != nil || l.records.holds(p.UID(), record) {
		return err
	}
	err = l.Records.WriteRecord(ctx, name, record)
	if errdefs.ClassOf(err) == errdefs.NotFound {
		return nil
	}
	if err == nil {
		l.records.note(p.UID(), record, r.Generation)
	}
	return err
}

// forgetRecord removes the record file of a pod whose cgroup is gone, because files are not
// removed with the cgroup. The cgroups of all classes share a file: it stays while it may be that of another one with the uid.
func (l *Loop) forgetRecord(ctx context.Context, name cgroup.Name) error {
	uid, ok := l.Layout.PodUID(name)
	if !ok || l.Records == nil {
		return nil
	}
	l.mu.Lock()
	p, known := l.View().Pod(uid)
	if !known && l.InFlight != nil {
		p, known = l.InFlight().Pod(uid)
	}
	if known && !l.names.isOf(p, name) && !l.NoPodCgroups {
		l.mu.Unlock()
		return nil
	}
	l.mu.Unlock()
	if others, err := l.hasOther(ctx, name, uid); others || err != nil {
		return err
	}
	l.mu.Lock()
	delete(l.records.written, uid)
	l.mu.Unlock()
	return l.Records.WriteRecord(context.WithoutCancel(ctx), name, nil)
}

// hasOther returns whether there is a cgroup of another class with the uid, and it shares a pod's record.
func (l *Loop) hasOther(ctx context.Context, name cgroup.Name, uid string) (bool, error) {
	if _, shared := l.Records.(cgroup.NamedRecords); !shared || l.NoPodCgroups {
		return false, nil
	}
	for _, class := range classes {
		other, err := l.Layout.Pod(class, uid)
		if err != nil || other.Equal(name) {
			continue
		}
		seen, err := l.Tree.Observe(ctx, other, 0)
		if err != nil {
			return false, fmt.Errorf("the claim record of pod %s stays: observe cgroup %s: %w", uid, other, err)
		}
		if seen.Find(other).State != cgroup.Absent {
			return true, nil
		}
	}
	return false, nil
}

// Started implements admission.CgroupManager.
func (l *Loop) Started(ctx context.Context, view *ledger.View, b ledger.Binding) (bool, error) {
	if l.Runtime != nil {
		// The runtime also lists containers that it has only created, so only processes
		// count.
		return l.Lives(ctx, b)
	}
	p, _, err := l.names.pod(view, b.Owner.Pod)
	if err != nil {
		return false, err
	}
	name, err := l.names.container(p, b.Owner.Container)
	if err != nil {
		return false, err
	}
	pids, err := l.Tree.Procs(ctx, name)
	if err != nil {
		return false, errors.Join(errdefs.Unavailablef("look for the processes of container %s", b.Owner), err)
	}
	return len(pids) > 0, nil
}
