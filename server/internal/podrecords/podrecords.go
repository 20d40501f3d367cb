// Package podrecords keeps a claim record in the cgroup of every pod of the ledger.
//
// Words:
//
//   - record: what the ledger has of one pod (managers/ledger/claimrecord). It survives the loss of the ledger.
//   - due: a record that has to be written. A turn writes at most AtOnce of them.
//
// A Keeper has no lock: its caller calls its methods one at a time, except Remove.
package podrecords

import (
	"bytes"
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/failpoint"
)

// The failpoints of this package, in the order of an admission.
const (
	BeforeRecord = "reconcile/before-record"
	AfterRecord  = "reconcile/after-record"
)

// Failpoints returns all failpoints of this package.
func Failpoints() []string { return []string{BeforeRecord, AfterRecord} }

// AtOnce limits the records written in one turn. If no record exists, for example on a copy of the ledger, the first
// start has to write one for each pod; other operations must not wait for all of them.
const AtOnce = 64

// Config of a Keeper.
type Config struct {
	// Records stores the records; nil if they cannot be stored. Then a Keeper does nothing.
	Records cgroup.Records
	Layout  cgroup.Layout
	// Leaving returns whether the cgroup of a pod is being removed. No record is written to it.
	Leaving func(uid string) bool
	// Wake is called when records have become due outside Follow and Repair of the caller's loop.
	Wake      func()
	Failpoint failpoint.Hook
	Log       *slog.Logger
}

// Keeper knows the written claim record of each pod's cgroup, and the view whose changes have been written.
type Keeper struct {
	Config
	seed    maphash.Seed
	written map[string]written
	view    *ledger.View
	// due are the uids of pods whose records have to be written.
	due []string
}

// written is the hash of a record, and the generation for which it was written.
type written struct {
	hash       uint64
	generation uint64
}

// New returns a Keeper that has not read or written anything.
func New(cfg Config) *Keeper {
	return &Keeper{Config: cfg, seed: maphash.MakeSeed(), written: map[string]written{}}
}

func (k *Keeper) note(uid string, record []byte, generation uint64) {
	k.written[uid] = written{maphash.Bytes(k.seed, record), generation}
}

func (k *Keeper) holds(uid string, record []byte) bool {
	w, ok := k.written[uid]
	return ok && record != nil && w.hash == maphash.Bytes(k.seed, record)
}

// Due returns whether there are records to write.
func (k *Keeper) Due() bool { return len(k.due) > 0 }

// Admit writes the record of a pod that is about to be committed from a view. With there, its cgroup has existed before, and
// before is the record that Restore writes again if the commit fails. It is set as soon as it was read, also with an error.
func (k *Keeper) Admit(ctx context.Context, view *ledger.View, p *ledger.Pod, there bool) (before *Before, err error) {
	if k.Records == nil {
		return nil, nil
	}
	name, err := k.Layout.Pod(p.QoS, p.UID())
	if err != nil {
		return nil, err
	}
	r := claimrecord.New(view, p, view.Generation()+1)
	record, err := r.Encode()
	if err != nil {
		return nil, err
	}
	if there {
		have, err := k.Records.ReadRecord(ctx, name)
		if err != nil && errdefs.ClassOf(err) != errdefs.PermissionDenied {
			return nil, err
		}
		before = &Before{p.UID(), name, have}
	}
	k.Failpoint.Hit(BeforeRecord)
	if err := k.Records.WriteRecord(ctx, name, record); err != nil {
		return before, err
	}
	k.Failpoint.Hit(AfterRecord)
	k.note(p.UID(), record, r.Generation)
	return before, nil
}

// Before is the record that a pod had before an admission.
type Before struct {
	uid    string
	name   cgroup.Name
	record []byte
}

// Restore writes the record again that a pod had before a failed admission.
func (k *Keeper) Restore(ctx context.Context, b *Before) error {
	delete(k.written, b.uid)
	// The old record lacks later commits.
	k.due = append(k.due, b.uid)
	k.Wake()
	return k.Records.WriteRecord(ctx, b.name, b.record)
}

// Follow writes the records of the pods that have changed since its last call. Before the first call of Repair it does
// nothing.
func (k *Keeper) Follow(ctx context.Context, view *ledger.View) {
	last := k.view
	if k.Records == nil || last == nil {
		return
	}
	if last.EpochID() != view.EpochID() {
		k.renew(view)
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
	k.view = view
	for uid := range uids {
		if p, ok := view.Pod(uid); ok {
			k.try(ctx, view, p)
		} else {
			delete(k.written, uid)
		}
	}
}

// renew has the records of all pods written again, which name a former epoch. The record of a change that is being
// committed stays: the commit writes it again.
func (k *Keeper) renew(view *ledger.View) {
	k.view, k.due = view, k.due[:0]
	for p := range view.Pods() {
		if k.written[p.UID()].generation <= p.ChangedGeneration {
			delete(k.written, p.UID())
		}
		k.due = append(k.due, p.UID())
	}
	k.Wake()
}

// Repair reads the record of every pod. Missing and changed records are due again: systemd may have created a pod's slice
// again. Then it writes some of the due ones.
func (k *Keeper) Repair(ctx context.Context, view *ledger.View) {
	if k.Records == nil {
		return
	}
	if k.Follow(ctx, view); k.view == nil {
		clear(k.written) // a change may not have been written
	}
	k.view, k.due = view, k.due[:0]
	for p := range view.Pods() {
		name, err := k.Layout.Pod(p.QoS, p.UID())
		if err != nil || k.Leaving(p.UID()) {
			continue
		}
		have, err := k.Records.ReadRecord(ctx, name)
		if err == nil && k.holds(p.UID(), have) {
			continue
		}
		delete(k.written, p.UID())
		r := claimrecord.New(view, p, p.ChangedGeneration)
		if want, failed := r.Encode(); failed == nil && err == nil && bytes.Equal(have, want) {
			k.note(p.UID(), have, r.Generation) // written by an earlier berthd
			continue
		}
		k.due = append(k.due, p.UID())
	}
	k.WriteDue(ctx, view)
}

// WriteDue writes at most AtOnce due records.
func (k *Keeper) WriteDue(ctx context.Context, view *ledger.View) {
	n := min(len(k.due), AtOnce)
	for _, uid := range k.due[:n] {
		if p, ok := view.Pod(uid); ok {
			k.try(ctx, view, p)
		}
	}
	k.due = k.due[n:]
}

// try writes the record of a pod, and has all compared again if that fails.
func (k *Keeper) try(ctx context.Context, view *ledger.View, p *ledger.Pod) {
	if err := k.write(ctx, view, p); err != nil {
		k.view = nil
		k.Log.ErrorContext(ctx, "writing a pod's claim record failed", "uid", p.UID(), "error", err)
	}
}

// write writes the record of a pod, unless it is written already, or a record of a later change that is being committed
// is. A pod without a cgroup gets its record together with the cgroup.
func (k *Keeper) write(ctx context.Context, view *ledger.View, p *ledger.Pod) error {
	name, err := k.Layout.Pod(p.QoS, p.UID())
	if k.Leaving(p.UID()) {
		delete(k.written, p.UID()) // it is compared again if the pod stays
		return err
	}
	if err != nil || k.written[p.UID()].generation > p.ChangedGeneration {
		return err
	}
	r := claimrecord.New(view, p, p.ChangedGeneration)
	record, err := r.Encode()
	if err != nil || k.holds(p.UID(), record) {
		return err
	}
	err = k.Records.WriteRecord(ctx, name, record)
	if errdefs.ClassOf(err) == errdefs.NotFound {
		return nil
	}
	if err == nil {
		k.note(p.UID(), record, r.Generation)
	}
	return err
}

// Forget forgets what was written for a pod.
func (k *Keeper) Forget(uid string) { delete(k.written, uid) }

// Remove removes the record of a pod whose cgroup is gone, because files are not removed with the cgroup. It uses nothing
// that other methods change, so it may be called at the same time.
func (k *Keeper) Remove(ctx context.Context, name cgroup.Name) error {
	return k.Records.WriteRecord(context.WithoutCancel(ctx), name, nil)
}

// HasOther returns whether tree has a cgroup of another class with the uid of a pod, and it shares the pod's record. As
// Remove it may be called at the same time as other methods.
func (k *Keeper) HasOther(ctx context.Context, tree cgroup.Tree, name cgroup.Name, uid string) (bool, error) {
	if _, shared := k.Records.(cgroup.NamedRecords); !shared {
		return false, nil
	}
	for _, class := range workload.QoSClasses {
		other, err := k.Layout.Pod(class, uid)
		if err != nil || other.Equal(name) {
			continue
		}
		seen, err := tree.Observe(ctx, other, 0)
		if err != nil {
			return false, fmt.Errorf("the claim record of pod %s stays: observe cgroup %s: %w", uid, other, err)
		}
		if seen.Find(other).State != cgroup.Absent {
			return true, nil
		}
	}
	return false, nil
}
