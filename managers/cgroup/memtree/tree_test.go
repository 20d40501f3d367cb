package memtree

import (
	"slices"
	"strings"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/cgrouptest"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/numa"
)

func TestTreeKeepsContract(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": V1(), "v2": V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cgrouptest.Run(t, func(*testing.T) cgrouptest.Fixture {
				tree := New(facts, cpuset.Range(0, 3), numa.Of(0, 1))
				return cgrouptest.Fixture{
					Tree: tree, Facts: facts, Root: cgroup.Name{"suite"},
					CPUs: cpuset.Range(0, 3), Mems: numa.Of(0, 1),
					Start: func(*testing.T) cgrouptest.Process {
						pid := tree.Spawn(Mortal)
						return cgrouptest.Process{PID: pid, Fork: func() { tree.Turn(pid, Forking) }}
					},
				}
			})
		})
	}
}

func ensure(t *testing.T, tree *Tree, v cgroup.Values, components ...string) error {
	t.Helper()
	_, err := tree.Ensure(t.Context(), cgroup.Node{Name: components, Values: v})
	return err
}

func cpus(list string) cgroup.Values {
	set, err := cpuset.Parse(list)
	if err != nil {
		panic(err)
	}
	return cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: set}}
}

func quota(us int64) cgroup.Values { return cgroup.Values{CPUQuotaUS: &us} }

func memory(bytes int64) cgroup.Values { return cgroup.Values{MemoryBytes: &bytes} }

// The rules that decide over the order of writes are there: each row is the
// write that a wrong order would make.
func TestKernelRules(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name    string
		facts   cgroup.Facts
		prepare func(t *testing.T, tree *Tree)
		write   cgroup.Values
		to      []string
		refusal string // empty: the kernel allows it
	}{
		{"v1: parent narrowed below its child", V1(), both(cpus("0-3"), cpus("2-3")), cpus("0-2"), []string{"p"}, "busy"},
		{"v1: child wider than its parent", V1(), both(cpus("0-1"), cpus("0")), cpus("1-2"), []string{"p", "c"}, "denied"},
		{"v1: CPU that is not there", V1(), both(cpus("0-1"), cpus("0")), cpus("0-4"), []string{"p"}, "invalid"},
		{"v2: parent narrowed below its child", V2(), both(cpus("0-3"), cpus("2-3")), cpus("0-2"), []string{"p"}, ""},
		{"v1: quota above the parent's", V1(), both(quota(5000), quota(2000)), quota(6000), []string{"p", "c"}, "invalid"},
		{"v1: quota below the child's", V1(), both(quota(5000), quota(2000)), quota(1000), []string{"p"}, "invalid"},
		{"v2: quota above the parent's", V2(), both(quota(5000), quota(2000)), quota(6000), []string{"p", "c"}, ""},
		{"v1: less than a millisecond", V1(), both(quota(5000), quota(2000)), quota(999), []string{"p", "c"}, "invalid"},
		{"v1: memory below the use", V1(), using(1 << 20), memory(4096), []string{"p", "c"}, "uses more memory"},
		{"v2: memory below the use", V2(), using(1 << 20), memory(4096), []string{"p", "c"}, "uses more memory"},
		{"v2: child below a process", V2(), func(t *testing.T, tree *Tree) {
			both(cpus("0"), cpus("0"))(t, tree)
			if err := tree.Move(t.Context(), cgroup.Name{"p", "c"}, tree.Spawn(Mortal)); err != nil {
				t.Fatal(err)
			}
		}, cgroup.Values{}, []string{"p", "c", "deeper"}, "holds processes"},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			tree := New(row.facts, cpuset.Range(0, 3), numa.Of(0))
			row.prepare(t, tree)
			err := ensure(t, tree, row.write, row.to...)
			switch {
			case row.refusal == "" && err != nil:
				t.Errorf("refused: %v", err)
			case row.refusal != "" && (err == nil || !strings.Contains(err.Error(), row.refusal)):
				t.Errorf("%v, want a refusal that says %q", err, row.refusal)
			}
		})
	}
}

func both(parent, child cgroup.Values) func(*testing.T, *Tree) {
	return func(t *testing.T, tree *Tree) {
		if err := ensure(t, tree, parent, "p"); err != nil {
			t.Fatal(err)
		}
		if err := ensure(t, tree, child, "p", "c"); err != nil {
			t.Fatal(err)
		}
	}
}

func using(bytes int64) func(*testing.T, *Tree) {
	return func(t *testing.T, tree *Tree) {
		both(cgroup.Values{}, cgroup.Values{})(t, tree)
		tree.UseMemory(cgroup.Name{"p", "c"}, bytes)
	}
}

// A loop that kills a fork bomb process by process never ends; Remove does.
func TestForkBombNeedsTheFreezer(t *testing.T) {
	t.Parallel()
	tree := New(V1(), cpuset.Of(0), numa.Of(0))
	name := cgroup.Name{"bomb"}
	if err := ensure(t, tree, cgroup.Values{}, name...); err != nil {
		t.Fatal(err)
	}
	if err := tree.Move(t.Context(), name, tree.Spawn(Forking)); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		pids, err := tree.Procs(t.Context(), name)
		if err != nil || len(pids) == 0 {
			t.Fatalf("the bomb died of killing one after the other: %v, %v", pids, err)
		}
		for _, pid := range pids {
			tree.Kill(pid)
		}
	}
	if err := tree.Remove(t.Context(), name); err != nil {
		t.Fatal(err)
	}
}

func TestStuckProcessEndsInDeadline(t *testing.T) {
	t.Parallel()
	tree := New(V2(), cpuset.Of(0), numa.Of(0))
	name := cgroup.Name{"pod"}
	if err := ensure(t, tree, cgroup.Values{}, name...); err != nil {
		t.Fatal(err)
	}
	stuck, mortal := tree.Spawn(Stuck), tree.Spawn(Mortal)
	if err := tree.Move(t.Context(), name, stuck, mortal); err != nil {
		t.Fatal(err)
	}
	err := tree.Remove(t.Context(), name)
	if errdefs.ClassOf(err) != errdefs.Deadline {
		t.Fatalf("Remove: %v, want class deadline", err)
	}
	if left, err := tree.Procs(t.Context(), name); err != nil || !slices.Equal(left, []int{stuck}) {
		t.Errorf("left are %v, %v; want only %d", left, err, stuck)
	}
	tree.Turn(stuck, Mortal)
	if err := tree.Remove(t.Context(), name); err != nil {
		t.Errorf("second Remove: %v", err)
	}
}

func TestBrokenCgroupIsRepaired(t *testing.T) {
	t.Parallel()
	tree := New(V2(), cpuset.Of(0), numa.Of(0))
	name := cgroup.Name{"pod"}
	if err := ensure(t, tree, cgroup.Values{}, name...); err != nil {
		t.Fatal(err)
	}
	tree.Break(name, "lacks the controller cpuset")
	seen, err := tree.Observe(t.Context(), name, 0)
	if err != nil || seen.Nodes[0].State != cgroup.Invalid || seen.Nodes[0].Reason == "" {
		t.Fatalf("broken cgroup: %+v, %v", seen, err)
	}
	ops := cgroup.Diff([]cgroup.Node{{Name: name}}, seen)
	if len(ops) != 1 || ops[0].Kind != cgroup.Create {
		t.Fatalf("ops for a broken cgroup: %+v, want one that creates", ops)
	}
	if err := cgroup.Apply(t.Context(), tree, ops); err != nil {
		t.Fatal(err)
	}
	if seen, err = tree.Observe(t.Context(), name, 0); err != nil || seen.Nodes[0].State != cgroup.Valid {
		t.Errorf("after the repair: %+v, %v", seen, err)
	}
}

// Where the tree replaces a kernel's, callers bring real processes.
func TestTakeAny(t *testing.T) {
	t.Parallel()
	tree := New(V1(), cpuset.Of(0), numa.Of(0)).TakeAny()
	name := cgroup.Name{"pod"}
	if err := ensure(t, tree, cgroup.Values{}, name...); err != nil {
		t.Fatal(err)
	}
	if err := tree.Move(t.Context(), name, 7); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Procs(t.Context(), name); err != nil || !slices.Equal(got, []int{7}) {
		t.Errorf("processes %v, %v; want 7", got, err)
	}
	if err := tree.Remove(t.Context(), name); err != nil {
		t.Error(err)
	}
}
