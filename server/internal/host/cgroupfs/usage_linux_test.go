package cgroupfs

import (
	"maps"
	"testing"
	"time"

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
		more, err := d.Details(t.Context(), n)
		var onNodes uint64
		for _, bytes := range more.NUMABytes {
			onNodes += bytes
		}
		if err != nil || more.CPU < u.CPU || onNodes < used*9/10 {
			t.Errorf("%s: %+v, %v; want about %d bytes on NUMA nodes", n, more, err, used)
		}
	}
	if _, err := d.Usage(t.Context(), append(pod[:len(pod):len(pod)], "gone")); errdefs.ClassOf(err) != errdefs.NotFound {
		t.Errorf("a cgroup that is not there: %v", err)
	}
}

func TestDetailTexts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]*cgroup.Throttling{
		"usage_usec 5\nnr_periods 10\nnr_throttled 3\nthrottled_usec 20\n": {Periods: 10, Throttled: 3, Time: 20 * time.Microsecond},
		"nr_periods 1\nnr_throttled 0\nthrottled_time 7\n":                 {Periods: 1, Time: 7},
		"usage_usec 5\n": nil,
		"nr_periods x\n": nil,
		"":               nil,
	} {
		if got := throttling(text); (got == nil) != (want == nil) || got != nil && *got != *want {
			t.Errorf("%q: %+v", text, got)
		}
	}
	v2 := "anon N0=4096 N1=8192\nfile N0=1 N1=bad Nx=3\nactive_anon N0=4096\nunknown\n"
	if got := numaBytes(v2, 1, "anon", "file"); !maps.Equal(got, map[int]uint64{0: 4097, 1: 8192}) {
		t.Errorf("v2: %v", got)
	}
	if got := numaBytes("total=9 N0=9\nhierarchical_total=3 N0=2 N1=1\n", 4096, "hierarchical_total"); !maps.Equal(got,
		map[int]uint64{0: 8192, 1: 4096}) {
		t.Errorf("v1: %v", got)
	}
	if got := statBytes("shmem 1\ntotal_shmem 4096\ntotal_shmem_x 5\n", "total_shmem"); got != 4096 {
		t.Errorf("memory.stat: %d", got)
	}
	if got := stalled("some avg10=0.00 avg60=0.00 avg300=0.00 total=1500\nfull avg10=0.00 total=9\n"); got == nil ||
		*got != 1500*time.Microsecond {
		t.Errorf("pressure: %v", got)
	}
	if got := stalled("full total=9\nsome total=\n"); got != nil {
		t.Errorf("pressure: %v", got)
	}
}
