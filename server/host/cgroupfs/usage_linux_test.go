package cgroupfs

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/errdefs"
)

// TestUsage: what a process uses stands in its cgroup and in the one above.
func TestUsage(t *testing.T) {
	t.Parallel()
	d := kernelTrees[0].open(t)
	pod := append(place(t, d), "pod")
	name := append(pod[:len(pod):len(pod)], "container")
	if _, err := d.Ensure(t.Context(), cgroup.Node{Name: name}); err != nil {
		t.Fatal(err)
	}
	const used = 16 << 20
	user(t, d, name, used)
	for _, n := range []cgroup.Name{name, pod} {
		u, err := d.Usage(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if u.CPU <= 0 || u.MemoryBytes < used || u.MemoryBytes > 8*used || u.WorkingSetBytes < used || u.WorkingSetBytes > u.MemoryBytes {
			t.Errorf("%s uses %+v, want some CPU time and at least %d bytes", n, u, used)
		}
	}
	if _, err := d.Usage(t.Context(), append(pod[:len(pod):len(pod)], "gone")); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a cgroup that is not there: %v", err)
	}
}
