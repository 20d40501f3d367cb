package observer

import (
	"context"
	"log/slog"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/claimrecord"
	"github.com/berthd/berth/managers/ledger/ledgertest"
	"github.com/berthd/berth/managers/machine/machinetest"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/recovery"
)

// unreadable is a store whose claim records cannot be read.
type unreadable struct {
	cgroup.Records
	err error
}

func (u unreadable) ReadRecord(context.Context, cgroup.Name) ([]byte, error) { return nil, u.err }

// stored are claim records by the base names of cgroups, without the cgroups.
type stored map[string][]byte

func (s stored) ReadRecord(_ context.Context, name cgroup.Name) ([]byte, error) {
	return s[name.Base()], nil
}

func (s stored) WriteRecord(context.Context, cgroup.Name, []byte) error { return nil }

func (s stored) Names() (names []string, err error) {
	for name := range s {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, nil
}

// withPod returns an observer of a tree with the cgroup of one pod, whose uid is a, and the record that a ledger with it stores.
func withPod(t *testing.T) (o *Observer, name cgroup.Name, record []byte) {
	t.Helper()
	facts := memtree.V1()
	layout, err := cgroup.NewLayout("/", facts.Driver)
	if err != nil {
		t.Fatal(err)
	}
	tree := memtree.New(facts, cpuset.Range(0, 3), numa.Of(0))
	draft := ledger.NewDraft(ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")}))
	p := ledgertest.With(ledgertest.Pod("a", "c"), ledgertest.Exclusive("c", "1"))
	draft.PutPod(p)
	view := draft.View()
	if name, err = layout.Pod(p.QoS, "a"); err != nil {
		t.Fatal(err)
	}
	for depth := range name {
		if _, err := tree.Ensure(t.Context(), cgroup.Node{Name: name[:depth+1]}); err != nil {
			t.Fatal(err)
		}
	}
	r := claimrecord.New(view, p, 1)
	if record, err = r.Encode(); err != nil {
		t.Fatal(err)
	}
	return &Observer{Tree: tree, Layout: layout, Records: tree, Log: slog.New(slog.DiscardHandler), Now: time.Now}, name, record
}

// TestFiles: where the tree shows no processes, the pods are those with a claim record, and whether they run is not known.
func TestFiles(t *testing.T) {
	t.Parallel()
	o, name, record := withPod(t)
	o.Records, o.Unseen = stored{name.Base(): record, "podb": []byte("damaged"), "something": record}, true
	all, unseen, err := o.Pods(t.Context())
	if err != nil || !unseen || len(all) != 2 {
		t.Fatalf("%+v, %t, %v", all, unseen, err)
	}
	if a := all[0]; a.UID != "a" || a.Record != recovery.Whole || a.Processes != recovery.Unseen || a.QoS != a.Claims.QoS {
		t.Errorf("%+v", a)
	}
	if b := all[1]; b.UID != "b" || b.Record != recovery.Damaged || b.Processes != recovery.Unseen || b.Claims != nil {
		t.Errorf("%+v", b)
	}
}

// TestKnown: a running pod that the ledger lacks has the claims of its record, and one of which nothing can be read has none.
func TestKnown(t *testing.T) {
	t.Parallel()
	o, name, record := withPod(t)
	tree := o.Tree.(*memtree.Tree)
	if err := tree.WriteRecord(t.Context(), name, record); err != nil {
		t.Fatal(err)
	}
	container := append(name, "c")
	if _, err := tree.Ensure(t.Context(), cgroup.Node{Name: container, Values: cgroup.Values{
		Cpuset: cgroup.Cpuset{CPUs: cpuset.Of(1), Mems: numa.Of(0)}}}); err != nil {
		t.Fatal(err)
	}
	if err := tree.Move(t.Context(), container, tree.Spawn(memtree.Mortal)); err != nil {
		t.Fatal(err)
	}
	view := ledger.Empty(ledger.Rules{Machine: machinetest.Build("4c")})
	u := o.Known(t.Context(), view, "a")
	if u.UID != "a" || u.Source == "" || len(u.Claims) != 1 || u.Claims[0].CPUs.Set != cpuset.Of(1) {
		t.Errorf("a pod with a record: %+v", u)
	}
	if u := o.Known(t.Context(), view, "other"); u.UID != "other" || u.Source != "" || len(u.Claims) > 0 || u.Since.IsZero() {
		t.Errorf("a pod without a cgroup: %+v", u)
	}
	o.Records = unreadable{tree, errdefs.Unavailablef("open: %w", syscall.EMFILE)}
	if u := o.Known(t.Context(), view, "a"); u.UID != "a" || u.Source != "" || len(u.Claims) > 0 {
		t.Errorf("a pod whose record cannot be read: %+v", u)
	}
}

// TestUnreadableRecords: what cannot be read for the moment is no damage; what can never be
// believed is.
func TestUnreadableRecords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err     error
		damaged bool
	}{
		{errdefs.Unavailablef("open: %w", syscall.EMFILE), false},
		{errdefs.Unavailablef("read: %w", syscall.EIO), false},
		{errdefs.Corruptf("noise"), true},
		{errdefs.PermissionDeniedf("it is owned by somebody else"), true},
	} {
		o, _, _ := withPod(t)
		o.Records = unreadable{o.Records, c.err}
		all, _, err := o.Pods(t.Context())
		if (err == nil) != c.damaged || c.damaged && (len(all) != 1 || all[0].Record != recovery.Damaged) {
			t.Errorf("%v: %+v, %v", c.err, all, err)
		}
	}
}
