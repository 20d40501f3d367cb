package reconcile

import (
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
)

// TestAllowed: processes of a cgroup without CPUs run on those of the parent, so on any; only v1 lets no process into such a cgroup.
func TestAllowed(t *testing.T) {
	t.Parallel()
	set := func(cpus ...int) cgroup.Cpuset { return cgroup.Cpuset{CPUs: cpuset.Of(cpus...)} }
	for name, row := range map[string]struct {
		seen   cgroup.Observed
		v1, v2 string
	}{
		"set":                   {cgroup.Observed{Values: cgroup.Values{Cpuset: set(1)}}, "1", "1"},
		"granted by the parent": {cgroup.Observed{Effective: set(2)}, "2", "2"},
		"both":                  {cgroup.Observed{Values: cgroup.Values{Cpuset: set(1)}, Effective: set(2)}, "1-2", "1-2"},
		"none":                  {cgroup.Observed{}, "", "0-3"},
		"none, with processes":  {cgroup.Observed{Populated: true}, "0-3", "0-3"},
	} {
		v1, v2 := newBench(t, memtree.V1(), nil).kernel, newBench(t, memtree.V2(), nil).kernel
		if !v1.v1() || v2.v1() {
			t.Fatal("the versions are mixed up")
		}
		if a, b := v1.allowed(row.seen).String(), v2.allowed(row.seen).String(); a != row.v1 || b != row.v2 {
			t.Errorf("%s: %q on v1 and %q on v2, want %q and %q", name, a, b, row.v1, row.v2)
		}
	}
}

// TestObserveInside: on v1 all below a cgroup that confines it is read, because only berthd moves it; on v2 the kernel does.
func TestObserveInside(t *testing.T) {
	t.Parallel()
	for facts, want := range map[*cgroup.Facts]int{ptr(memtree.V1()): 4, ptr(memtree.V2()): 2} {
		b := newBench(t, *facts, nil)
		b.set("/one/below", cgroup.Values{})
		b.set("/one/below/it", cgroup.Values{})
		b.set("/two/below", cgroup.Values{})
		one, two := cgroup.Name{"one"}, cgroup.Name{"two"}
		seen, err := b.kernel.observeInside(t.Context(), []cgroup.Node{{Name: one}, {Name: two}}, one.Equal)
		if err != nil || len(seen.Nodes) != want {
			t.Errorf("%v: %d cgroups are read, want %d: %v", facts.Version, len(seen.Nodes), want, err)
		}
		b.blind["/two"] = errRefused
		if _, err := b.kernel.observeInside(t.Context(), []cgroup.Node{{Name: one}, {Name: two}}, one.Equal); err == nil {
			t.Error("a cgroup that cannot be read is left out")
		}
	}
}
