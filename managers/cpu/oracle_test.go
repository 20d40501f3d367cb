package cpu

import (
	"cmp"
	"math"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/machine"
)

// oracle chooses CPUs by the rules in their plainest words, with sets and
// without counters. It is slow.
type oracle struct {
	topo   *machine.Topology
	free   cpuset.Set
	result cpuset.Set
	need   int
}

func (o *oracle) take(s cpuset.Set) {
	o.result, o.free, o.need = o.result.Union(s), o.free.Minus(s), o.need-s.Len()
}

// ids lists the units of a partition that have CPUs in a set, by the number of
// free CPUs in the whole unit, then by id.
func (o *oracle) ids(p *machine.Partition, within cpuset.Set) []int {
	var units []int
	for i := range p.Touched(within.Intersect(o.free)) {
		units = append(units, i)
	}
	slices.SortStableFunc(units, func(a, b int) int {
		return cmp.Compare(p.CPUs(a).IntersectLen(o.free), p.CPUs(b).IntersectLen(o.free))
	})
	return units
}

// nested lists the units of inner by those of outer.
func (o *oracle) nested(outer []int, p, inner *machine.Partition) []int {
	var units []int
	for _, i := range outer {
		units = append(units, o.ids(inner, p.CPUs(i))...)
	}
	return units
}

func (o *oracle) levels() (upper, second *machine.Partition) {
	if o.topo.NumSockets() >= o.topo.NumNUMANodes() {
		return o.topo.ByNode(), o.topo.BySocket()
	}
	return o.topo.BySocket(), o.topo.ByNode()
}

func (o *oracle) upper() []int {
	upper, _ := o.levels()
	return o.ids(upper, o.topo.CPUs())
}

func (o *oracle) second() []int {
	upper, second := o.levels()
	return o.nested(o.upper(), upper, second)
}

func (o *oracle) takeWhole(p *machine.Partition, units []int, average int) {
	whole := slices.DeleteFunc(slices.Clone(units), func(i int) bool {
		return !p.CPUs(i).IsSubsetOf(o.free) || average >= 0 && p.Size(i) != average
	})
	for _, i := range whole {
		if o.need >= p.Size(i) && p.CPUs(i).IsSubsetOf(o.free) {
			o.take(p.CPUs(i))
		}
	}
}

func (o *oracle) average(p *machine.Partition) int {
	if p == o.topo.BySocket() {
		return o.topo.CPUsPerSocket()
	}
	return -1
}

func (o *oracle) takeUncores() {
	uncores, nodes := o.topo.ByUncore(), o.topo.ByNode()
	order := o.ids(nodes, o.topo.CPUs())
	if upper, _ := o.levels(); upper != nodes {
		order = o.second()
	}
	order = o.nested(order, nodes, uncores)
	for _, u := range order {
		if o.need >= o.topo.CPUsPerUncore() {
			o.takeWhole(uncores, order, -1)
		}
		if o.need < 1 {
			return
		}
		var candidates []int
		cores := int(math.Ceil(float64(o.need) / float64(max(o.topo.CPUsPerCore(), 1))))
		for i := range o.topo.ByCore().Touched(uncores.CPUs(u).Intersect(o.free)) {
			if cores--; cores >= 0 {
				candidates = append(candidates, o.topo.ByCore().CPUs(i).Intersect(o.free).IDs()...)
			}
		}
		slices.Sort(candidates)
		if o.need%2 == 1 && o.topo.CPUsPerCore() > 1 && len(candidates) > o.need {
			candidates = candidates[:len(candidates)-1]
		}
		if len(candidates) == o.need {
			o.take(cpuset.Of(candidates...))
		}
	}
}

func oraclePacked(topo *machine.Topology, free cpuset.Set, n int, m manner) (cpuset.Set, bool) {
	o := &oracle{topo: topo, free: free, need: n}
	if n > free.Len() {
		return cpuset.Set{}, false
	}
	upper, second := o.levels()
	o.takeWhole(upper, o.upper(), o.average(upper))
	o.takeWhole(second, o.second(), o.average(second))
	if m.uncores && o.need > 0 {
		o.takeUncores()
	}
	if !m.spread {
		o.takeWhole(topo.ByCore(), o.nested(o.second(), second, topo.ByCore()), max(topo.CPUsPerCore(), 1))
	}
	var singles []int
	if m.spread {
		sockets := o.upper()
		if upper != topo.BySocket() {
			sockets = o.second()
		}
		for _, s := range sockets {
			in := topo.BySocket().CPUs(s).Intersect(o.free)
			if m.asKubelet {
				singles = append(singles, in.IDs()...)
				continue
			}
			for turn := range o.topo.CPUs().Len() {
				for _, c := range o.ids(topo.ByCore(), in) {
					if threads := topo.ByCore().CPUs(c).Intersect(in).IDs(); turn < len(threads) {
						singles = append(singles, threads[turn])
					}
				}
			}
		}
	} else {
		for _, c := range o.nested(o.second(), second, topo.ByCore()) {
			singles = append(singles, topo.ByCore().CPUs(c).Intersect(o.free).IDs()...)
		}
	}
	for _, id := range singles {
		if o.need > 0 && o.free.Contains(id) {
			o.take(cpuset.Of(id))
		}
	}
	return o.result, true
}

// oracleDistributed computes the score of every candidate.
func oracleDistributed(topo *machine.Topology, free cpuset.Set, n int, how evenly) (cpuset.Set, bool) {
	g := how.group
	packed := func() (cpuset.Set, bool) { return oraclePacked(topo, free, n, manner{}) }
	if n == 0 || n%g != 0 || n > free.Len() {
		return packed()
	}
	o := &oracle{topo: topo, free: free}
	nodes := o.upper()
	if upper, _ := o.levels(); upper != topo.ByNode() {
		nodes = o.second()
	}
	nodes = unique(nodes)
	avail := make([]int, len(nodes))
	for i, x := range nodes {
		avail[i] = topo.ByNode().CPUs(x).IntersectLen(free)
	}
	perNode := ((topo.CPUs().Len()-1)/g)/topo.ByNode().Len() + 1
	groups := (n-1)/g + 1
	first, last := (groups-1)/perNode+1, min(groups, len(nodes))
	if how.least > first && how.least <= last {
		first = how.least
	}
	for k := first; k <= last; k++ {
		best, bestShare, bestOne := math.Inf(1), 0, false
		var bestSet, bestTakers []int
		for _, s := range oracleSubsets(len(nodes), k) {
			d := n / k / g * g
			var cpus cpuset.Set
			for _, x := range s {
				cpus = cpus.Union(topo.ByNode().CPUs(nodes[x]))
				if how.bySocket {
					d = min(d, avail[x]/g*g)
				}
			}
			one := how.bySocket && len(slices.Collect(topo.BySocket().Touched(cpus))) == 1
			sum, whole, least := 0, 0, math.MaxInt
			for _, x := range s {
				sum, whole, least = sum+avail[x], whole+avail[x]/g*g, min(least, avail[x])
			}
			if best == 0 && one == bestOne || bestOne && !one || sum < n || whole < n || least < d {
				continue
			}
			rest := slices.Clone(avail)
			var able []int
			for _, x := range s {
				if rest[x] -= d; rest[x] >= g {
					able = append(able, x)
				}
			}
			r := n - d*k
			score, takers := math.Inf(1), []int(nil)
			if r == 0 {
				score = deviation(rest)
			}
			for j := len(able); j > 0 && r > 0; j-- {
				for _, t := range oracleSubsets(len(able), j) {
					after, members := slices.Clone(rest), make([]int, j)
					for i := range t {
						members[i] = able[t[i]]
					}
					if oracleTurns(after, members, r, g) {
						if sc := deviation(after); sc < score {
							score, takers = sc, members
						}
					}
				}
			}
			if score < math.Inf(1) && (score < best || one && !bestOne) {
				best, bestShare, bestOne, bestSet, bestTakers = score, d, one, s, takers
			}
		}
		if bestSet == nil {
			continue
		}
		left := n - bestShare*k
		for _, x := range bestSet {
			o.takePacked(nodes[x], bestShare)
		}
		for left > 0 {
			for _, x := range bestTakers {
				if left > 0 && topo.ByNode().CPUs(nodes[x]).IntersectLen(o.free) >= g {
					o.takePacked(nodes[x], g)
					left -= g
				}
			}
		}
		return o.result, true
	}
	return packed()
}

func (o *oracle) takePacked(x, n int) {
	s, _ := oraclePacked(o.topo, o.free.Intersect(o.topo.ByNode().CPUs(x)), n, manner{})
	o.take(s)
}

// oracleTurns hands r out in turns of g; false if that cannot end.
func oracleTurns(after, members []int, r, g int) bool {
	room := 0
	for _, x := range members {
		room += after[x] / g * g
	}
	if room < r {
		return false
	}
	for r > 0 {
		for _, x := range members {
			if r > 0 && after[x] >= g {
				after[x] -= g
				r -= g
			}
		}
	}
	return true
}

func oracleSubsets(n, k int) [][]int {
	if k == 0 {
		return [][]int{nil}
	}
	var out [][]int
	for first := range n - k + 1 {
		for _, rest := range oracleSubsets(n-first-1, k-1) {
			s := []int{first}
			for _, x := range rest {
				s = append(s, first+1+x)
			}
			out = append(out, s)
		}
	}
	return out
}

func unique(list []int) []int {
	var out []int
	for _, x := range list {
		if !slices.Contains(out, x) {
			out = append(out, x)
		}
	}
	return out
}
