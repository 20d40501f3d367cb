package podrecords_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/workload"
	"github.com/berthd/berth/server/internal/podrecords"
)

// store has records by the names of cgroups, and counts what is done with them.
type store struct {
	have          map[string][]byte
	reads, writes int
	fail          error
}

func (s *store) ReadRecord(_ context.Context, name cgroup.Name) ([]byte, error) {
	s.reads++
	return s.have[name.String()], s.fail
}

func (s *store) WriteRecord(_ context.Context, name cgroup.Name, record []byte) error {
	if s.fail != nil {
		return s.fail
	}
	s.writes++
	s.have[name.String()] = record
	return nil
}

// named is a store outside the cgroups.
type named struct{ *store }

func (named) Names() ([]string, error) { return nil, nil }

type bench struct {
	*podrecords.Keeper
	*store
	t       *testing.T
	ledger  *ledger.Ledger
	leaving []string
	woken   int
}

func newBench(t *testing.T) *bench {
	t.Helper()
	layout, err := cgroup.NewLayout("/", cgroup.Cgroupfs)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{t: t, store: &store{have: map[string][]byte{}},
		ledger: ledgertest.New(t, ledger.Rules{Machine: machinetest.Build("4c")})}
	b.Keeper = podrecords.New(podrecords.Config{Records: b.store, Layout: layout, Wake: func() { b.woken++ },
		Leaving: func(uid string) bool { return slices.Contains(b.leaving, uid) }, Log: slog.New(slog.DiscardHandler)})
	return b
}

func (b *bench) update(change func(*ledger.Draft)) *ledger.View {
	b.t.Helper()
	view, err := b.ledger.Update(b.t.Context(), func(d *ledger.Draft) error { change(d); return nil })
	if err != nil {
		b.t.Fatal(err)
	}
	return view
}

func (b *bench) at(uid string) cgroup.Name {
	b.t.Helper()
	name, err := b.Layout.Pod(ledgertest.Pod(uid, "c").QoS, uid)
	if err != nil {
		b.t.Fatal(err)
	}
	return name
}

// expect counts what a step writes.
func (b *bench) expect(what string, writes int, step func(context.Context, *ledger.View)) {
	b.t.Helper()
	before := b.writes
	if step(b.t.Context(), b.ledger.View()); b.writes-before != writes {
		b.t.Errorf("%s: %d records were written, want %d", what, b.writes-before, writes)
	}
}

// TestKeeper: records are read once before anything is followed. A record is written when its pod changes, is lost, or could
// not be written; none is written for a pod that leaves.
func TestKeeper(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")); d.PutPod(ledgertest.Pod("b", "c")) })
	b.expect("before the first repair", 0, b.Follow)
	b.expect("repair", 2, b.Repair)
	b.expect("another one", 0, b.Repair)
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}}) })
	b.leaving = []string{"a"}
	b.expect("a pod that leaves", 0, b.Repair)
	b.leaving = nil
	b.expect("it stays", 1, b.Repair)
	b.have[b.at("b").String()] = nil
	b.expect("a lost record, in between", 0, b.Follow)
	b.expect("a lost record", 1, b.Repair)
	b.update(func(d *ledger.Draft) { d.Unbind("id") })
	b.fail = errors.New("no space")
	b.expect("no space", 0, b.Follow)
	b.fail = nil
	b.expect("nothing is followed until all are compared", 0, b.Follow)
	b.expect("all are compared", 1, b.Repair)
	if b.Due() || b.woken > 0 {
		t.Errorf("due %t, woken %d times", b.Due(), b.woken)
	}
	if _, err := b.ledger.RenewEpoch(t.Context(), 4711); err != nil {
		t.Fatal(err)
	}
	b.expect("a new epoch", 0, b.Follow)
	if !b.Due() || b.woken != 1 {
		t.Errorf("records of a former epoch: due %t, woken %d times", b.Due(), b.woken)
	}
	b.expect("what is due", 2, b.WriteDue)
	if b.Due() {
		t.Error("records that are written are due")
	}
}

// TestKeeperAdmits: the record of an admission is not overwritten by an older one, and is replaced by the one before it if the
// admission fails.
func TestKeeperAdmits(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
	b.expect("repair", 1, b.Repair)
	old := b.have[b.at("a").String()]
	admit := func(there bool) (*podrecords.Before, error) {
		t.Helper()
		view := b.ledger.View()
		p, _ := view.Pod("a")
		return b.Admit(t.Context(), view, p, there)
	}
	before, err := admit(true)
	if err != nil || before == nil || bytes.Equal(b.have[b.at("a").String()], old) {
		t.Fatalf("%v, %v: the record has not changed", before, err)
	}
	b.update(func(d *ledger.Draft) { d.Bind(ledger.Binding{ID: "id", Owner: ledger.Owner{Pod: "a", Container: "c"}}) })
	b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("b", "c")) })
	b.expect("the other pod", 1, b.Follow)
	if err := b.Restore(t.Context(), before); err != nil || !bytes.Equal(b.have[b.at("a").String()], old) || !b.Due() || b.woken != 1 {
		t.Errorf("%v: due %t, woken %d times", err, b.Due(), b.woken)
	}
	b.expect("what was committed meanwhile", 1, b.WriteDue)
	if before, err = admit(false); before != nil || err != nil {
		t.Errorf("a new cgroup has had no record: %v, %v", before, err)
	}
	b.fail = errors.New("no space")
	if before, err = admit(true); before != nil || !errors.Is(err, b.fail) {
		t.Errorf("a record that cannot be read: %v, %v", before, err)
	}
	b.fail = errdefs.PermissionDeniedf("no access")
	if before, err = admit(true); before == nil || !errors.Is(err, b.fail) {
		t.Errorf("a record that cannot be written is restored: %v, %v", before, err)
	}
}

// TestKeeperWithoutRecords: nothing is done where records cannot be stored.
func TestKeeperWithoutRecords(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.Records = nil
	view := b.update(func(d *ledger.Draft) { d.PutPod(ledgertest.Pod("a", "c")) })
	p, _ := view.Pod("a")
	if before, err := b.Admit(t.Context(), view, p, true); before != nil || err != nil {
		t.Errorf("%v, %v", before, err)
	}
	b.expect("repair", 0, b.Repair)
	b.expect("follow", 0, b.Follow)
}

// TestSharedRecords: only a record outside the cgroups is shared with the cgroup of another class.
func TestSharedRecords(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	tree := memtree.New(memtree.V2(), machinetest.Build("4c").CPUs(), machinetest.Build("4c").MemoryNodeMask())
	other := func() bool {
		t.Helper()
		has, err := b.HasOther(t.Context(), tree, b.at("a"), "a")
		if err != nil {
			t.Fatal(err)
		}
		return has
	}
	second, err := b.Layout.Pod(workload.Burstable, "a")
	if err != nil || second.Equal(b.at("a")) {
		t.Fatalf("%s, %v", second, err)
	}
	if _, err := tree.Ensure(t.Context(), cgroup.Node{Name: second}); err != nil {
		t.Fatal(err)
	}
	if other() {
		t.Error("a record in its cgroup is shared")
	}
	b.Records = named{b.store}
	if !other() {
		t.Error("a record outside the cgroups is not shared")
	}
	if err := tree.Remove(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if other() {
		t.Error("a record is shared with a cgroup that is gone")
	}
	if err := b.Remove(t.Context(), b.at("a")); err != nil || b.have[b.at("a").String()] != nil {
		t.Errorf("removed: %v, %v", b.have, err)
	}
}
