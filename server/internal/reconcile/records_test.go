package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/recovery"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/observer"
	"github.com/berthd/berth/server/internal/podrecords"
)

// writeCounter counts writes of records.
type writeCounter struct {
	cgroup.Records
	writes int
	fail   error
}

func (c *writeCounter) WriteRecord(ctx context.Context, name cgroup.Name, record []byte) error {
	if c.fail != nil {
		return c.fail
	}
	c.writes++
	return c.Records.WriteRecord(ctx, name, record)
}

// recordBench is a bench with records in its tree, and pod a in ledger and tree.
func recordBench(t *testing.T) (b *bench, records *writeCounter, name cgroup.Name) {
	t.Helper()
	records = &writeCounter{}
	b = newBench(t, memtree.V1(), func(c *Config) { c.Records = records })
	records.Records = b.tree
	b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
	if err := b.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	p, _ := b.ledger.View().Pod("a")
	name, err := b.Layout.Pod(p.QoS, "a")
	if err != nil {
		t.Fatal(err)
	}
	return b, records, name
}

func (b *bench) record(name cgroup.Name) *claimrecord.Record {
	b.t.Helper()
	data, err := b.tree.ReadRecord(b.t.Context(), name)
	if err != nil || data == nil {
		b.t.Fatalf("record %q, %v", data, err)
	}
	uid, _ := b.Layout.PodUID(name)
	r, err := claimrecord.Decode(uid, data)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// exclusive is a claim of pod a.
func exclusive(cpus string) ledger.Claim {
	c := ledgertest.Exclusive("c", cpus)
	c.Owner.Pod = "a"
	return c
}

// TestRecordsFollow: passes and follows keep claim records equal to the ledger, and write
// none that is so already.
func TestRecordsFollow(t *testing.T) {
	t.Parallel()
	b, records, name := recordBench(t)
	expect := func(writes int, step func(context.Context) error) {
		t.Helper()
		before := records.writes
		if err := step(t.Context()); err != nil || records.writes-before != writes {
			t.Errorf("%d records were written, want %d: %v", records.writes-before, writes, err)
		}
	}
	if r := b.record(name); r.Pod != "a" || len(r.Claims) != 0 {
		t.Errorf("record %+v", r)
	}
	expect(0, b.Pass)
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}}) })
	expect(1, b.Follow)
	if r := b.record(name); len(r.Bindings) != 1 || r.Bindings[0].ID != "id" {
		t.Errorf("record %+v", r)
	}
	expect(0, b.Follow)
	b.update(func(d *ledger.Draft) { d.AddClaims("a", exclusive("2-3")) })
	expect(1, b.Follow)
	if r := b.record(name); len(r.Claims) != 1 || r.Generation != b.ledger.View().Generation() {
		t.Errorf("record %+v", r)
	}
	// Another program recreates the cgroup, or writes the attribute.
	if err := b.tree.WriteRecord(t.Context(), name, nil); err != nil {
		t.Fatal(err)
	}
	expect(0, b.Follow)
	expect(1, b.Pass)
	if err := b.tree.WriteRecord(t.Context(), name, []byte("other")); err != nil {
		t.Fatal(err)
	}
	expect(1, b.Pass)
	b.record(name)
	// What cannot be written is tried again, whatever happens.
	records.fail = errdefs.Unavailablef("no space")
	b.update(func(d *ledger.Draft) { d.Unbind("id") })
	_ = b.Follow(t.Context())
	records.fail = nil
	expect(1, b.Pass)
	if r := b.record(name); len(r.Bindings) != 0 {
		t.Errorf("record %+v", r)
	}
}

// TestRecordClaims: the record of an admission is written as of the next generation; one
// that was there before is put back.
func TestRecordClaims(t *testing.T) {
	t.Parallel()
	b, _, name := recordBench(t)
	before := b.record(name)
	draft := ledger.NewDraft(b.ledger.View())
	draft.AddClaims("a", exclusive("2-3"))
	restore, err := b.RecordClaims(t.Context(), draft.View(), "a", true)
	if err != nil {
		t.Fatal(err)
	}
	if r := b.record(name); len(r.Claims) != 1 || r.Generation != b.ledger.View().Generation()+1 {
		t.Errorf("record %+v", r)
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if r := b.record(name); len(r.Claims) != 0 || r.Generation != before.Generation {
		t.Errorf("record %+v", r)
	}
}

// TestObservePods: of pods with cgroups it is seen whether they run, where, and what
// their records have it.
func TestObservePods(t *testing.T) {
	t.Parallel()
	b, _, name := recordBench(t)
	ctx := t.Context()
	make := func(class workload.QoSClass, uid, container, cpus string) cgroup.Name {
		t.Helper()
		pod, err := b.Layout.Pod(class, uid)
		if err != nil {
			t.Fatal(err)
		}
		set, _ := cpuset.Parse(cpus)
		n := append(pod, container)
		if _, err := b.tree.Ensure(ctx,
			cgroup.Node{Name: n, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set, Mems: numa.Of(0)}}}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	runs := make(workload.Guaranteed, "runs", "c", "2-3")
	if err := b.tree.Move(ctx, runs, b.tree.Spawn(memtree.Mortal)); err != nil {
		t.Fatal(err)
	}
	make(workload.Burstable, "empty", "c", "1")
	if err := b.tree.WriteRecord(ctx, runs.Parent(), []byte("damaged")); err != nil {
		t.Fatal(err)
	}
	from := observer.Observer{Tree: b, Layout: b.Layout, Records: b.Records, Log: b.Log}
	all, unseen, err := from.Pods(ctx)
	if err != nil || unseen || len(all) != 3 {
		t.Fatalf("%+v, %t, %v", all, unseen, err)
	}
	a, empty, running := all[0], all[1], all[2]
	if a.UID != "a" || a.Record != recovery.Whole || a.Processes != recovery.Empty || a.Claims.Pod != "a" {
		t.Errorf("%+v", a)
	}
	if empty.UID != "empty" || empty.Record != recovery.Missing || empty.Processes != recovery.Empty || empty.QoS != workload.Burstable {
		t.Errorf("%+v", empty)
	}
	if running.Record != recovery.Damaged || running.Processes != recovery.Running || running.QoS != workload.Guaranteed ||
		len(running.Containers) != 1 || running.Containers[0].Name != "c" || running.Containers[0].CPUs != cpuset.Of(2, 3) {
		t.Errorf("%+v", running)
	}
	// What runs is not removed, what is empty is.
	if err := b.RemoveEmpty(ctx, b.ledger.View(), "runs"); errdefs.ClassOf(err) != errdefs.Precondition {
		t.Errorf("%v", err)
	}
	if err := b.RemoveEmpty(ctx, b.ledger.View(), "empty"); err != nil {
		t.Error(err)
	}
	if seen, _ := b.tree.Observe(ctx, name, 0); seen.Find(name).State == cgroup.Absent {
		t.Error("the cgroup of a known pod was removed")
	}
}

// TestSharersOfUnknownPods: a container of an unknown living pod that shares CPUs leaves
// those of single callers.
func TestSharersOfUnknownPods(t *testing.T) {
	t.Parallel()
	b, _, _ := recordBench(t)
	ctx := t.Context()
	place := func(uid, cpus string) cgroup.Name {
		t.Helper()
		pod, err := b.Layout.Pod(workload.Guaranteed, uid)
		if err != nil {
			t.Fatal(err)
		}
		set, _ := cpuset.Parse(cpus)
		n := append(pod, "c")
		if _, err := b.tree.Ensure(ctx,
			cgroup.Node{Name: n, Values: cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set, Mems: numa.Of(0)}}}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	own, shares := place("own", "3"), place("shares", "0-3")
	b.update(func(d *ledger.Draft) {
		claims := ledgertest.With(ledgertest.Pod("own", "c"), ledgertest.Exclusive("c", "3")).Claims
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "own", Source: ledger.FromKernel, Claims: claims})
		d.PutUnknownLive(ledger.UnknownLivePod{UID: "shares", Source: ledger.FromKernel})
	})
	cpus := func(name cgroup.Name) string {
		t.Helper()
		seen, err := b.tree.Observe(ctx, name, 0)
		if err != nil {
			t.Fatal(err)
		}
		return seen.Find(name).Values.CPUs.String()
	}
	if err := b.Pass(ctx); err != nil || cpus(own) != "3" || cpus(shares) != "0-2" {
		t.Errorf("%v: CPUs %s and %s", err, cpus(own), cpus(shares))
	}
	b.update(func(d *ledger.Draft) { d.AddClaims("a", exclusive("2")) })
	if err := b.Follow(ctx); err != nil || cpus(own) != "3" || cpus(shares) != "0-1" {
		t.Errorf("%v: CPUs %s and %s", err, cpus(own), cpus(shares))
	}
	if err := b.tree.Remove(ctx, shares); err != nil {
		t.Fatal(err)
	}
	b.update(func(d *ledger.Draft) { d.DropClaims("a", exclusive("2")) })
	if err := b.Follow(ctx); err != nil {
		t.Error(err)
	}
	if seen, _ := b.tree.Observe(ctx, shares, 0); seen.Find(shares).State != cgroup.Absent {
		t.Error("the cgroup of somebody else was made again")
	}
}

// TestRecordsOfBefore: a start finds the claim records that berthd wrote before it, and
// writes none of them.
func TestRecordsOfBefore(t *testing.T) {
	t.Parallel()
	b, records, _ := recordBench(t)
	b.update(func(d *ledger.Draft) { d.AddClaims("a", exclusive("2-3")) })
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}}) })
	if err := b.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	next, before := New(b.Config), records.writes
	if err := errors.Join(next.Pass(t.Context()), next.Pass(t.Context())); err != nil || records.writes != before {
		t.Errorf("%d records were written: %v", records.writes-before, err)
	}
}

// TestRecordsInTurns: a start that finds no records writes a few at once, so that
// an admission does not wait for all.
func TestRecordsInTurns(t *testing.T) {
	t.Parallel()
	b, records, name := recordBench(t)
	const pods = 2*podrecords.AtOnce + 7
	b.update(func(d *ledger.Draft) {
		for i := range pods - 1 {
			d.PutPod(ledgertest.Pod(fmt.Sprint("p", i), "c"))
		}
	})
	if err := b.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	for p := range b.ledger.View().Pods() {
		n, _ := b.Layout.Pod(p.QoS, p.UID())
		if err := b.tree.WriteRecord(t.Context(), n, nil); err != nil {
			t.Fatal(err)
		}
	}
	b.Loop = New(b.Config)
	before := records.writes
	expect := func(writes int) {
		t.Helper()
		if records.writes-before != writes {
			t.Errorf("%d records are written, want %d", records.writes-before, writes)
		}
	}
	if err := b.Pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(podrecords.AtOnce)
	// Who changes meanwhile has his record at once, and is not written again.
	b.update(func(d *ledger.Draft) {
		changed := ledgertest.Exclusive("c", "1")
		changed.Owner.Pod = "p99"
		d.AddClaims("p99", changed)
		d.RemovePod("p98")
	})
	if err := b.Follow(t.Context()); err != nil {
		t.Fatal(err)
	}
	for b.recordsDue() {
		if err := b.WriteDue(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	b.record(name)
	for p := range b.ledger.View().Pods() {
		n, _ := b.Layout.Pod(p.QoS, p.UID())
		if r := b.record(n); r.Generation != p.ChangedGeneration {
			t.Errorf("the record of %s is of generation %d, want %d", p.UID(), r.Generation, p.ChangedGeneration)
		}
	}
}

// TestRecordOfAChangeUnderWay: a commit while a pod's record has a change
// that is not committed yet does not overwrite that. If the change is undone, the record
// has both what was before and what was committed meanwhile.
func TestRecordOfAChangeUnderWay(t *testing.T) {
	t.Parallel()
	b, _, name := recordBench(t)
	b.update(func(d *ledger.Draft) { d.AddClaims("a", exclusive("2")) })
	draft := ledger.NewDraft(b.ledger.View())
	draft.AddClaims("a", exclusive("2-3"))
	restore, err := b.RecordClaims(t.Context(), draft.View(), "a", true)
	if err != nil {
		t.Fatal(err)
	}
	owner := ledger.Owner{Pod: "a", Container: "c"}
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "id", Owner: owner}) })
	for _, step := range []func(context.Context) error{b.Follow, b.Pass} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
		if r := b.record(name); len(r.Claims) != 1 || r.Claims[0].CPUs.Set != cpuset.Of(2, 3) {
			t.Errorf("record %+v", r)
		}
	}
	if err := restore(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(b.Follow(t.Context()), b.WriteDue(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r := b.record(name); len(r.Claims) != 1 || r.Claims[0].CPUs.Set != cpuset.Of(2) || len(r.Bindings) != 1 {
		t.Errorf("record %+v", r)
	}
}

// TestRecordsOfANewEpoch: claim records of the former epoch would not reveal an older
// copy of the ledger, so all are written again.
func TestRecordsOfANewEpoch(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][]func(*bench) error{
		"at once": {func(b *bench) error { return b.Follow(b.t.Context()) },
			func(b *bench) error { return b.WriteDue(b.t.Context()) }},
		"in a pass": {func(b *bench) error { return b.Pass(b.t.Context()) }},
		"in a pass after that": {func(b *bench) error { return b.Follow(b.t.Context()) },
			func(b *bench) error { return b.Pass(b.t.Context()) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, _, name := recordBench(t)
			if _, err := b.ledger.RenewEpoch(t.Context(), 4711); err != nil {
				t.Fatal(err)
			}
			for _, step := range steps {
				if err := step(b); err != nil {
					t.Fatal(err)
				}
			}
			if r := b.record(name); r.Epoch != 4711 {
				t.Errorf("the claim record is of epoch %s, the ledger of %s", r.Epoch, b.ledger.View().EpochID())
			}
		})
	}
}
