package main

import (
	"fmt"
	"math"
	"slices"

	"github.com/berthd/berth/managers/cpu"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
)

// spreadRule is a rule by which CPUs are distributed over NUMA nodes.
type spreadRule struct {
	// defect uses the content of the chosen nodes' buffers after the enumeration (kubernetes#141237).
	defect bool
	// bySocket prefers nodes of one socket, since 1.37.
	bySocket bool
}

// spread is the reference's distribution of CPUs over NUMA nodes, by the number of CPUs of each
// node.
type spread struct {
	spreadRule
	topo  *machine.Topology
	group int
	// free by place of the node in the machine.
	free []int
}

// perNode is how many CPUs of a set each node has.
func perNode(topo *machine.Topology, set cpuset.Set) []int {
	out := make([]int, topo.ByNode().Len())
	for i := range out {
		out[i] = topo.ByNode().CPUs(i).IntersectLen(set)
	}
	return out
}

// order lists the nodes with free CPUs: the sockets with the fewest free CPUs first,
// and in each the nodes with the fewest.
func (s *spread) order() []int {
	nodes, sockets := s.topo.ByNode(), s.topo.BySocket()
	socket := make([]int, nodes.Len()) // -1 for a node that is in no socket as a whole
	inSocket := map[int]int{}
	var list []int
	for i, free := range s.free {
		socket[i] = -1
		for at := range sockets.Touched(nodes.CPUs(i)) {
			if s.topo.NumSockets() < s.topo.NumNUMANodes() && nodes.CPUs(i).IsSubsetOf(sockets.CPUs(at)) {
				socket[i] = at
				inSocket[at] += free
			}
		}
		if free > 0 {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b int) int {
		return slices.Compare(
			[]int{inSocket[socket[a]], socket[a], s.free[a], a},
			[]int{inSocket[socket[b]], socket[b], s.free[b], b})
	})
	return list
}

// take returns how many CPUs each node gives of n; false if they are packed.
func (s *spread) take(n int) ([]int, bool) {
	taken := make([]int, len(s.free))
	if n == 0 {
		return taken, true
	}
	if n%s.group != 0 {
		return nil, false
	}
	list := s.order()
	perUnit := ((s.topo.CPUs().Len()-1)/s.group)/s.topo.NumNUMANodes() + 1
	needed := (n-1)/s.group + 1
	for k := (needed-1)/perUnit + 1; k <= min(needed, len(list)); k++ {
		best, inSocket := math.Inf(1), false
		var chosen, takers []int
		all := sets(list, k)
		stopped := -1
		for i, subset := range all {
			if best == 0 && (!s.bySocket || inSocket) {
				stopped = i
				break
			}
			score, rest, ok := s.score(list, subset, n)
			if one := s.bySocket && s.oneSocket(subset); ok && (one && !inSocket || one == inSocket && score < best) {
				best, inSocket, chosen, takers = score, one, subset, rest
			}
		}
		if chosen == nil {
			continue
		}
		if s.defect {
			chosen, takers = s.overwritten(all, chosen, takers, stopped, n)
		}
		return taken, s.hand(taken, chosen, takers, n)
	}
	return nil, false
}

// share is what each node of a subset gives.
func (s *spread) share(n int, subset []int) int {
	share := n / len(subset) / s.group * s.group
	for _, x := range subset {
		if s.bySocket {
			share = min(share, s.free[x]/s.group*s.group)
		}
	}
	return share
}

// oneSocket reports whether the CPUs of all nodes of a subset are in one socket.
func (s *spread) oneSocket(subset []int) bool {
	var all cpuset.Set
	for _, x := range subset {
		all = all.Union(s.topo.ByNode().CPUs(x))
	}
	return touched(s.topo.BySocket(), all) == 1
}

// able are the nodes of a subset that have a free group beyond their shares.
func (s *spread) able(subset []int, n int) []int {
	return slices.DeleteFunc(slices.Clone(subset), func(x int) bool {
		return s.free[x]-s.share(n, subset) < s.group
	})
}

// score is the deviation of what the nodes of a list are left with.
func (s *spread) score(list, subset []int, n int) (best float64, takers []int, ok bool) {
	share, groups := s.share(n, subset), 0
	rest := slices.Clone(s.free)
	for _, x := range subset {
		if groups += s.free[x] / s.group; s.free[x] < share {
			return 0, nil, false
		}
		rest[x] -= share
	}
	remainder := n - share*len(subset)
	if groups*s.group < n {
		return 0, nil, false
	}
	if remainder == 0 {
		return unevenness(list, rest), nil, true
	}
	best = math.Inf(1)
	able := s.able(subset, n)
	for j := len(able); j > 0; j-- {
		for _, some := range sets(able, j) {
			after := slices.Clone(rest)
			if s.round(after, some, remainder) != 0 {
				continue
			}
			if score := unevenness(list, after); score < best {
				best, takers, ok = score, some, true
			}
		}
	}
	return best, takers, ok
}

// round takes groups from the takers in turns, and returns what they could not give.
func (s *spread) round(from, takers []int, remainder int) int {
	for before := 0; remainder > 0 && before != remainder; {
		before = remainder
		for _, x := range takers {
			if remainder > 0 && from[x] >= s.group {
				from[x] -= s.group
				remainder -= s.group
			}
		}
	}
	return remainder
}

// overwritten returns the content of the buffers of the chosen nodes and takers after the
// enumeration. The first elements are correct, and the others are from the last write with the
// same first elements.
func (s *spread) overwritten(all [][]int, chosen, takers []int, stopped, n int) (_, _ []int) {
	able := s.able(chosen, n)
	if kept := fresh(len(takers)); kept < len(takers) {
		takers = slices.Concat(takers[:kept], able[len(able)-(len(takers)-kept):])
	}
	last := all[len(all)-1]
	if stopped >= 0 {
		last = all[stopped]
	}
	kept := fresh(len(chosen))
	if stopped < 0 || slices.Equal(last[:kept], chosen[:kept]) {
		chosen = slices.Concat(chosen[:kept], last[kept:])
	}
	return chosen, takers
}

// fresh is the number of elements of a buffer for k that are not overwritten. They end at the
// buffer's last growth.
func fresh(k int) int {
	if k <= 2 {
		return k
	}
	at := 2
	for at*2 < k {
		at *= 2
	}
	return at + 1
}

// hand takes the shares and the remainder.
func (s *spread) hand(taken, chosen, takers []int, n int) bool {
	rest, left := slices.Clone(s.free), n
	share := s.share(n, chosen)
	for _, x := range chosen {
		if rest[x] >= share {
			rest[x] -= share
			left -= share
		}
	}
	left = s.round(rest, takers, left)
	for i := range taken {
		taken[i] = s.free[i] - rest[i]
	}
	return left == 0
}

// sets are the k-subsets of a list in the order of their places.
func sets(list []int, k int) [][]int {
	if k == 0 {
		return [][]int{{}}
	}
	var out [][]int
	for i := 0; i+k <= len(list); i++ {
		for _, rest := range sets(list[i+1:], k-1) {
			out = append(out, append([]int{list[i]}, rest...))
		}
	}
	return out
}

// unevenness is the standard deviation of what the nodes of a list are left with,
// mean and result rounded to three decimals.
func unevenness(list, rest []int) float64 {
	round := func(x float64) float64 { return math.Round(x*1000) / 1000 }
	sum := 0
	for _, x := range list {
		sum += rest[x]
	}
	mean := round(float64(sum) / float64(len(list)))
	squares := 0.0
	for _, x := range list {
		squares += (float64(rest[x]) - mean) * (float64(rest[x]) - mean)
	}
	return round(math.Sqrt(squares / float64(len(list))))
}

// rule is the rule of a version of the kubelet.
func (s cpuSetup) rule(v version, defect bool) spreadRule {
	return spreadRule{defect, v >= 37 && s.Options[cpu.AlignBySocket] == "true"}
}

// spreads compares a choice of n CPUs, near first, with what each node gives by a rule. Nodes that are packed, because
// they cannot be spread over, are not compared.
func (s cpuSetup) spreads(topo *machine.Topology, free, home, taken cpuset.Set, n int, rule spreadRule) error {
	d := &spread{topo: topo, group: 1, spreadRule: rule}
	if s.Options[cpu.FullPCPUsOnly] == "true" {
		d.group = max(topo.CPUsPerCore(), 1)
	}
	got, near := perNode(topo, taken), free.Intersect(home)
	d.free = perNode(topo, near)
	first, ok := d.take(min(n, near.Len()))
	if !ok {
		return nil
	}
	d.free = perNode(topo, free)
	for i := range first {
		d.free[i] -= first[i]
	}
	second, ok := d.take(n - min(n, near.Len()))
	for i := range got {
		want := first[i]
		if ok {
			want += second[i]
		}
		if got[i] < want || ok && got[i] > want {
			return fmt.Errorf("the nodes give %v CPUs, and by the rule first %v and then %v", got, first, second)
		}
	}
	return nil
}
