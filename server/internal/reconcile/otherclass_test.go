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
			b.Records = files
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
			if _, opens := b.opening["own"]; !opens {
				t.Error("the cgroup of the pod is not restricted any more, and its sandbox may begin on all CPUs")
			}
			if b.seen("/kubepods/podown").State == cgroup.Absent {
				t.Error("the cgroup of the pod was removed")
			}
		})
	}
}
