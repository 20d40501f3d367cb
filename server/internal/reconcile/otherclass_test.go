package reconcile

import (
	"path/filepath"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/host/claimfiles"
)

// TestRecordOfAnotherClassStays: a pod is admitted, and a cgroup of another class with its uid is left of before. Its removal, also with
// an older view, takes neither the pod's claim record, which is a file for all classes, nor what is known of its sandbox.
func TestRecordOfAnotherClassStays(t *testing.T) {
	t.Parallel()
	for what, remove := range map[string]func(b *bench, old *ledger.View) error{
		"the cgroup is there": func(b *bench, _ *ledger.View) error {
			b.set("/kubepods/besteffort/podown/c", cgroup.Values{})
			return b.RemoveUnknown(t.Context(), b.ledger.View(), "own")
		},
		"no cgroup is left": func(b *bench, _ *ledger.View) error { return b.RemoveUnknown(t.Context(), b.ledger.View(), "own") },
		"the view is older": func(b *bench, old *ledger.View) error { return b.RemoveUnknown(t.Context(), old, "own") },
		"it was found by a pass": func(b *bench, _ *ledger.View) error {
			b.set("/kubepods/besteffort/podown", cgroup.Values{})
			return b.RemoveOrphan(t.Context(), name("/kubepods/besteffort/podown"))
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			files, err := claimfiles.Open(filepath.Join(t.TempDir(), "claims"), "boot")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = files.Close() })
			b, _ := newFakeRuntime(t, memtree.V1())
			b.records.Records = files
			old := b.ledger.View()
			p := exclusivePod("own", "2-3")
			b.commit(p)
			b.pass()
			own, err := b.Layout.Pod(p.QoS, "own")
			b.must(err)
			before, err := files.ReadRecord(t.Context(), own)
			if err != nil || before == nil {
				t.Fatalf("record %q, %v", before, err)
			}
			b.must(remove(b, old))
			if after, err := files.ReadRecord(t.Context(), own); err != nil || string(after) != string(before) {
				t.Errorf("the record of the pod is %q, %v", after, err)
			}
			if _, opens := b.sandboxes.opening.pods["own"]; !opens {
				t.Error("the cgroup of the pod is not restricted any more, and its sandbox may begin on all CPUs")
			}
			if b.seen("/kubepods/podown").State == cgroup.Absent {
				t.Error("the cgroup of the pod was removed")
			}
		})
	}
}

// TestUnknownPodThatStays: of an unknown pod with cgroups of two classes, one is removed, and the other cannot be read, or not be removed.
// The pod is not removed then, and keeps the claim record, which is a file for both.
func TestUnknownPodThatStays(t *testing.T) {
	t.Parallel()
	for what, bad := range map[string]func(b *bench, path string){
		"unreadable": func(b *bench, path string) { b.blind[path] = errRefused },
		"stuck":      func(b *bench, path string) { b.refuse[path] = errRefused },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			files, err := claimfiles.Open(filepath.Join(t.TempDir(), "claims"), "boot")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = files.Close() })
			b := newBench(t, memtree.V1(), func(c *Config) { c.Records = files })
			const stays, leaves = "/kubepods/burstable/podx", "/kubepods/besteffort/podx"
			b.set(stays, cgroup.Values{})
			b.set(leaves, cgroup.Values{})
			b.must(files.WriteRecord(t.Context(), name(stays), []byte("record")))
			bad(b, stays)
			if err := b.RemoveUnknown(t.Context(), b.ledger.View(), "x"); err == nil {
				t.Error("the pod counts as removed")
			}
			clear(b.blind)
			clear(b.refuse)
			if record, err := files.ReadRecord(t.Context(), name(stays)); err != nil || record == nil {
				t.Errorf("the record is %q, %v", record, err)
			}
			if b.seen(leaves).State != cgroup.Absent {
				t.Error("the other cgroup was not removed")
			}
			b.must(b.RemoveUnknown(t.Context(), b.ledger.View(), "x"))
			if record, err := files.ReadRecord(t.Context(), name(stays)); err != nil || record != nil {
				t.Errorf("the pod is removed, and the record is %q, %v", record, err)
			}
		})
	}
}
