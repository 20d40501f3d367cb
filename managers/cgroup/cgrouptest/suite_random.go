package cgrouptest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/berthd/berth/managers/cgroup"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/numa"
)

// testRandomTrees goes from one made-up tree to the next. On a kernel it shows
// that the order of Diff is right there too, and on the tree in memory that its
// rules are not laxer.
func testRandomTrees(t *testing.T, s *suite) {
	seeds := uint64(20)
	if testing.Short() { // a tree may take its time, as systemd's does
		seeds = 5
	}
	for seed := range seeds {
		random := randomTree{s, rand.New(rand.NewPCG(seed, 1))}
		desired := random.grow(s.name("tier"), cgroup.Cpuset{CPUs: s.CPUs, Mems: s.Mems}, 0, 2)
		s.forget(t, desired)
		s.reach(t, desired)
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// forget removes the cgroups that are not desired.
func (s *suite) forget(t *testing.T, desired []cgroup.Node) {
	t.Helper()
	seen, err := s.Tree.Observe(t.Context(), s.Root, -1)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range slices.Backward(seen.Nodes) {
		wanted := slices.ContainsFunc(desired, func(d cgroup.Node) bool { return d.Name.Within(n.Name) })
		if !wanted && n.State != cgroup.Absent {
			if err := s.Tree.Remove(t.Context(), n.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// randomTree makes trees whose children fit their parents.
type randomTree struct {
	*suite
	rand *rand.Rand
}

// grow makes a node and levels below it. share is the part of a CPU,
// in thousandths of the period, that the nearest quota above allows; 0 is no
// quota.
func (r randomTree) grow(name cgroup.Name, within cgroup.Cpuset, share int64, levels int) []cgroup.Node {
	v := r.sample(1 + r.rand.Int64N(4))
	if slices.Contains(r.Facts.Controllers, "cpu") {
		*v.CPUPeriodUS = []uint64{10_000, 100_000, 250_000}[r.rand.IntN(3)]
		share = r.share(share)
		*v.CPUQuotaUS = cgroup.Unlimited
		if share > 0 {
			*v.CPUQuotaUS = share * int64(*v.CPUPeriodUS) / 1000
		}
	}
	if slices.Contains(r.Facts.Controllers, "cpuset") {
		v.CPUs = cpuset.Of(r.some(within.CPUs.IDs())...)
		v.Mems = numa.Of(r.some(within.Mems.IDs())...)
	}
	nodes := []cgroup.Node{{Name: name, Values: v}}
	for c := range r.rand.IntN(4) {
		if levels > 0 {
			child := append(slices.Clone(name), fmt.Sprint(c))
			nodes = append(nodes, r.grow(child, v.Cpuset, share, levels-1)...)
		}
	}
	return nodes
}

// share draws a quota that fits below another one.
func (r randomTree) share(above int64) int64 {
	most := int64(4000)
	if above > 0 {
		most = above
	}
	if above == 0 && r.rand.IntN(3) == 0 {
		return 0
	}
	const least = 100 // a millisecond of the shortest period
	return least + r.rand.Int64N(max(most-least, 0)+1)
}

// some draws at least one of the ids.
func (r randomTree) some(ids []int) []int {
	r.rand.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	return ids[:1+r.rand.IntN(len(ids))]
}
