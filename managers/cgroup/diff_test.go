package cgroup_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cgroup/memtree"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

const numCPUs = 8

// memoryNodes of the machine in the tree in memory.
var memoryNodes = numa.Of(0, 1, 2)

func optional[T any](t *rapid.T, g *rapid.Generator[T], label string) *T {
	if !rapid.Bool().Draw(t, label+" is set") {
		return nil
	}
	v := g.Draw(t, label)
	return &v
}

func subset(t *rapid.T, of []int, label string) []int {
	n := rapid.IntRange(1, len(of)).Draw(t, label+" size")
	return rapid.Permutation(of).Draw(t, label)[:n]
}

// values draws a node's values that fit its parent's: the sets lie within, and
// a quota does not exceed the next one above.
func values(t *rapid.T, f cgroup.Facts, within cgroup.Cpuset, quotaAbove float64) (cgroup.Values, float64) {
	v := cgroup.Values{
		CPUShares: optional(t, rapid.Uint64Range(0, 300_000).Filter(func(n uint64) bool { return n == 0 || n >= 2 && n <= 262144 }),
			"shares"),
		MemoryBytes: optional(t, rapid.Int64Range(-1, 1<<20), "memory"),
		PIDs:        optional(t, rapid.Int64Range(-1, 100), "pids"),
		HugePages:   map[int64]int64{},
		Cpuset: cgroup.Cpuset{
			CPUs: cpuset.Of(subset(t, within.CPUs.IDs(), "cpus")...),
			Mems: numa.Of(subset(t, within.Mems.IDs(), "mems")...),
		},
	}
	for _, size := range append([]int64{64 << 10}, f.HugePageSizes...) {
		if limit := optional(t, rapid.Int64Range(-1, 4<<30), "huge pages"); limit != nil {
			v.HugePages[size] = *limit
		}
	}
	if low := optional(t, rapid.Int64Range(0, 1<<20), "low"); low != nil {
		v.Unified = map[string]string{"memory.low": fmt.Sprint(*low)}
	}
	period := rapid.SampledFrom([]uint64{10_000, 100_000, 250_000}).Draw(t, "period")
	quota := rapid.Int64Range(-1, 8*int64(period)).Draw(t, "quota")
	if quota >= 0 {
		quota = max(min(quota, int64(quotaAbove*float64(period))), cgroup.MinQuotaUS)
		if float64(quota)/float64(period) > quotaAbove {
			quota = cgroup.Unlimited
		}
	}
	v.CPUQuotaUS, v.CPUPeriodUS = &quota, &period
	if quota > 0 {
		quotaAbove = float64(quota) / float64(period)
	}
	return v, quotaAbove
}

// wanted draws a desired tree of tiers, pods and containers.
func wanted(t *rapid.T, f cgroup.Facts) []cgroup.Node {
	all := cgroup.Cpuset{CPUs: cpuset.Range(0, numCPUs-1), Mems: memoryNodes}
	var nodes []cgroup.Node
	var grow func(name cgroup.Name, within cgroup.Cpuset, quota float64, depth int)
	grow = func(name cgroup.Name, within cgroup.Cpuset, quota float64, depth int) {
		v, quota := values(t, f, within, quota)
		nodes = append(nodes, cgroup.Node{Name: name, Values: v})
		if depth == 0 {
			return
		}
		for _, c := range []string{"a", "b", "c"} {
			if rapid.IntRange(0, 2).Draw(t, "child") > 0 {
				grow(append(slices.Clone(name), c), v.Cpuset, quota, depth-1)
			}
		}
	}
	grow(cgroup.Name{"kubepods"}, all, 1e9, 3)
	return nodes
}

// Whatever the tree is and whatever it is to become: the kernel's rules are kept
// at every step, all desired values are in force at the end, and a second Diff
// finds nothing to do.
func TestDiffIsSafeAndComplete(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				tree := memtree.New(facts, cpuset.Range(0, numCPUs-1), memoryNodes)
				for range rapid.IntRange(1, 4).Draw(t, "trees") {
					desired := wanted(t, facts)
					forget(t, tree, desired)
					reach(t, tree, rapid.Permutation(desired).Draw(t, "order"))
				}
			})
		})
	}
}

// forget removes what is not desired any more, as the engine does with pods
// before the tree is brought in order.
func forget(t *rapid.T, tree cgroup.Tree, desired []cgroup.Node) {
	seen := look(t, tree)
	for _, n := range slices.Backward(seen.Nodes) {
		if n.State == cgroup.Absent || slices.ContainsFunc(desired, func(d cgroup.Node) bool { return d.Name.Within(n.Name) }) {
			continue
		}
		if err := tree.Remove(context.Background(), n.Name); err != nil {
			t.Fatal(err)
		}
	}
}

func look(t *rapid.T, tree cgroup.Tree) *cgroup.Snapshot {
	seen, err := tree.Observe(context.Background(), cgroup.Name{"kubepods"}, -1)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}

func reach(t *rapid.T, tree cgroup.Tree, desired []cgroup.Node) {
	ops := cgroup.Diff(desired, look(t, tree))
	if err := cgroup.Apply(context.Background(), tree, ops); err != nil {
		for _, op := range ops {
			t.Logf("%s %s %+v", op.Kind, op.Name, op.Writes)
		}
		t.Fatalf("a step was refused: %v", err)
	}
	seen := look(t, tree)
	for _, n := range desired {
		has := map[string]string{}
		for _, f := range seen.Find(n.Name).Values.Files(seen.Facts) {
			has[f.Name] = f.Text
		}
		for _, f := range n.Values.Files(seen.Facts) {
			if has[f.Name] != f.Text {
				t.Fatalf("%s of %s is %q, want %q", f.Name, n.Name, has[f.Name], f.Text)
			}
		}
	}
	if again := cgroup.Diff(desired, seen); len(again) > 0 {
		t.Fatalf("a second Diff wants %s of %s: %+v", again[0].Kind, again[0].Name, again[0].Writes)
	}
}

// No container may run on CPUs that become another one's own before it has left
// them, wherever that is possible at all.
func TestDiffMovesCPUs(t *testing.T) {
	t.Parallel()
	for name, facts := range map[string]cgroup.Facts{"v1": memtree.V1(), "v2": memtree.V2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				tree := memtree.New(facts, cpuset.Range(0, numCPUs-1), memoryNodes)
				reach(t, tree, containers(t))
				next := containers(t)
				for _, op := range cgroup.Diff(next, look(t, tree)) {
					before := look(t, tree).Find(op.Name).Effective.CPUs
					if err := cgroup.Apply(context.Background(), tree, []cgroup.Op{op}); err != nil {
						t.Fatal(err)
					}
					alone(t, look(t, tree), op.Name, before)
				}
			})
		})
	}
}

// owned are the CPUs that belong to one container each.
var owned = cpuset.Range(0, 3)

// containers draws a pod whose containers own some CPUs between them and share
// the rest, so that every container always keeps a CPU.
func containers(t *rapid.T) []cgroup.Node {
	all := cgroup.Cpuset{CPUs: cpuset.Range(0, numCPUs-1), Mems: memoryNodes}
	nodes := []cgroup.Node{{Name: cgroup.Name{"kubepods"}, Values: cgroup.Values{Cpuset: all}}}
	sets := map[string]cpuset.Set{}
	for cpu := range owned.All() {
		c := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "owner")
		sets[c] = sets[c].Union(cpuset.Of(cpu))
	}
	for _, c := range []string{"a", "b", "c"} {
		v := cgroup.Values{Cpuset: cgroup.Cpuset{CPUs: sets[c].Union(cpuset.Range(4, numCPUs-1)), Mems: memoryNodes}}
		nodes = append(nodes, cgroup.Node{Name: cgroup.Name{"kubepods", c}, Values: v})
	}
	return nodes
}

// alone checks that a container shares none of the owned CPUs it has gained.
func alone(t *rapid.T, seen *cgroup.Snapshot, name cgroup.Name, before cpuset.Set) {
	gained := seen.Find(name).Effective.CPUs.Minus(before).Intersect(owned)
	for _, n := range seen.Nodes {
		if len(n.Name) == 2 && !n.Name.Equal(name) && n.Effective.CPUs.Overlaps(gained) {
			t.Fatalf("%s gets CPUs %s while %s still runs on %s", name, gained, n.Name, n.Effective.CPUs)
		}
	}
}
