package cgroupfs

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/server/internal/host/cgroupfs/ocicgroups"
)

// Shares that the kernel does not take as they are, and whose file it writes
// without a word, are an error all the same.
func TestSharesBeyond(t *testing.T) {
	t.Parallel()
	d, err := Open(Options{Setter: ocicgroups.Setter{}})
	if err != nil {
		t.Skipf("no usable tree: %v", err)
	}
	t.Cleanup(func() { _ = d.Close() })
	if d.Facts().Version != cgroup.V1 {
		t.Skipf("the tree is of version %v: shares are v1's", d.Facts().Version)
	}
	name := place(t, d)
	for _, shares := range []uint64{1, 1 << 19} {
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{CPUShares: &shares}}); err == nil {
			t.Errorf("%d shares were taken", shares)
		}
	}
	for _, shares := range []uint64{2, 1 << 18} {
		if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name, Values: cgroup.Values{CPUShares: &shares}}); err != nil {
			t.Error(err)
		}
		seen, err := d.Observe(t.Context(), name, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := value(seen.Nodes[0].Values.CPUShares); got != shares {
			t.Errorf("the kernel keeps %d shares, want %d", got, shares)
		}
	}
}
