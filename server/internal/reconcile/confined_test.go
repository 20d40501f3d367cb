package reconcile

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/ledgertest"
)

// Another program takes CPUs from the cgroup of all pods. The container's own file stays as it was written, and its processes run
// elsewhere: that is a finding until the CPUs are back.
func TestConfinedByACgroupAbove(t *testing.T) {
	t.Parallel()
	b := newBench(t, memtree.V2(), nil)
	b.update(func(d *ledger.Draft) {
		d.PutPod(ledgertest.With(ledgertest.Pod("x", "c"), ledgertest.Exclusive("c", "3")))
	})
	b.pass()
	if _, err := b.startIn("x", "x1"); err != nil {
		t.Fatal(err)
	}
	found := func() (out []string) {
		t.Helper()
		b.pass()
		for _, f := range b.Findings() {
			if f.Rule == ruleConfined && f.Owner.Pod == "x" {
				out = append(out, f.Text)
			}
		}
		return out
	}
	for range 3 {
		if got := found(); len(got) != 0 {
			t.Fatalf("before: %q", got)
		}
	}
	root := b.seen("/kubepods").Values.Cpuset
	b.set("/kubepods", cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: cpuset.Range(0, 2)}})
	if got := found(); len(got) != 0 {
		t.Errorf("after one pass: %q", got)
	}
	if got := found(); !slices.ContainsFunc(got, func(s string) bool {
		return strings.Contains(s,
			"its processes run on CPUs 0-2, and not on 3")
	}) {
		t.Errorf("after two passes: %q", got)
	}
	if root.CPUs.IsEmpty() {
		root.CPUs = b.ledger.View().Machine().CPUs()
	}
	b.set("/kubepods", cgroup.Values{Cpuset: root})
	if got := found(); len(got) != 0 {
		t.Errorf("after the CPUs are back: %q", got)
	}
}
