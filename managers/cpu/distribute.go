package cpu

import (
	"math"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
)

// evenly is how CPUs are spread over NUMA nodes.
type evenly struct {
	// group is the number of CPUs that stay together: a core's under full-pcpus-only, else 1.
	group int
	// least is the number of nodes to use at least, if the request is large enough for them.
	// A device on one of the merge's nodes so stays near some of the CPUs (kubernetes#139430).
	least int
	// bySocket prefers nodes of one socket, whatever is free on them (align-by-socket).
	bySocket bool
}

// distributed takes n CPUs spread evenly over as few NUMA nodes as can hold
// them (KEP-2902). Where no even spread exists it packs.
func (t *table) distributed(free cpuset.Set, n int, how evenly) (cpuset.Set, error) {
	group := how.group
	if n%group != 0 {
		return t.packed(free, n, manner{})
	}
	if n <= 0 {
		return cpuset.Set{}, nil
	}
	r := newRun(t, free, n)
	if r.left < n {
		return cpuset.Set{}, shortage(n, r.left)
	}
	d := &distribution{table: t, evenly: how, score: math.Inf(1), n: n, nodes: slices.Clip(r.distinctNodes())}
	for _, x := range d.nodes {
		d.avail = append(d.avail, r.count(node, x))
	}
	if !d.search() {
		return t.packed(free, n, manner{})
	}
	return d.assign(free.Intersect(t.topo.CPUs()))
}

// distinctNodes is order(node) without repetitions.
func (r *run) distinctNodes() []int32 {
	var seen cpuset.Builder
	return slices.DeleteFunc(r.order(node), func(x int32) bool {
		if seen.Contains(int(x)) {
			return true
		}
		seen.Add(int(x))
		return false
	})
}

// distribution is the search for the nodes over which n CPUs are spread.
//
// A candidate is a set of nodes that each give an equal share, and among them
// the takers of the remainder, who give it group by group in turns. Its score
// is the standard deviation of the free CPUs that all nodes are left with,
// rounded to three decimals as the reference does: the first candidate with the
// least score wins, over the smallest number of nodes for which there is one.
// By socket, a candidate within one socket wins over any other, and the equal share
// is at most what each of its nodes has.
type distribution struct {
	*table
	evenly
	n     int
	nodes []int32 // those with free CPUs, in the order of the enumeration
	avail []int   // their free CPUs

	// The best candidate so far, by positions in nodes.
	chosen, takers []int
	squares        int // sum of the squares of what the nodes are left with
	score          float64
	inSocket       bool // the chosen nodes are in one socket; only by socket
}

// exactBelow is the number of candidates up to which all are compared. The
// reference compares any number, which on machines of more than a dozen nodes
// takes it minutes.
const (
	exactBelow  = 1 << 17
	exactTakers = 16
)

// search finds the best candidate; false if there is none.
func (d *distribution) search() bool {
	least, most := d.sizes()
	for k := least; k <= most; k++ {
		if candidates(len(d.nodes), k) <= exactBelow {
			d.trySubsets(k)
		} else {
			d.tryLargest(k)
		}
		if d.chosen != nil {
			return true
		}
	}
	return false
}

// sizes gives the least and largest number of nodes worth trying. The least
// follows from the machine's size, whatever is free, and from what is demanded
// if so many nodes can give something.
func (d *distribution) sizes() (least, most int) {
	groups := (d.topo.CPUs().Len()-1)/d.group + 1
	perNode := (groups-1)/d.part[node].Len() + 1
	needed := (d.n-1)/d.group + 1
	least, most = (needed-1)/perNode+1, min(needed, len(d.nodes))
	if d.least <= most {
		least = max(least, d.least)
	}
	return least, most
}

// candidates is the number of ways to choose k of n nodes, and takers among
// those; or more than exactBelow, if it is more.
func candidates(n, k int) int {
	c := 1
	for i := range k {
		c = c * (n - i) / (i + 1) // whole at every step: c is n over i+1
		if c > exactBelow {
			return c
		}
	}
	if k > exactTakers {
		return exactBelow + 1
	}
	return c << k
}

func (d *distribution) trySubsets(k int) {
	subsets(len(d.nodes), k, func(chosen []int) bool {
		d.try(chosen)
		return d.score != 0 || d.bySocket && !d.inSocket
	})
}

// tryLargest tries the k nodes with the most free CPUs, which can hold the
// request if any k can, and apart from rounding leave the most even rest. By
// socket it tries those of each socket first.
func (d *distribution) tryLargest(k int) {
	all, bySocket := make([]int, len(d.nodes)), make([][]int, d.part[socket].Len())
	for i := range all {
		all[i] = i
		if homes := d.nodeSockets.members[d.nodes[i]]; len(homes) == 1 {
			bySocket[homes[0]] = append(bySocket[homes[0]], i)
		}
	}
	for _, some := range bySocket {
		if d.bySocket && len(some) >= k {
			d.try(largest(some, d.avail, k))
		}
	}
	if !d.inSocket {
		d.try(largest(all, d.avail, k))
	}
}

// share is what each of the chosen nodes gives, a multiple of the group.
func (d *distribution) share(chosen []int) int {
	share := d.n / len(chosen) / d.group * d.group
	if d.bySocket {
		for _, x := range chosen {
			share = min(share, d.avail[x]/d.group*d.group)
		}
	}
	return share
}

// oneSocket reports whether nodes are in one socket.
func (d *distribution) oneSocket(chosen []int) bool {
	first := d.nodeSockets.members[d.nodes[chosen[0]]]
	return len(first) == 1 && !slices.ContainsFunc(chosen[1:], func(x int) bool {
		return !slices.Equal(d.nodeSockets.members[d.nodes[x]], first)
	})
}

// try evaluates one set of nodes with all ways to place the remainder.
func (d *distribution) try(chosen []int) {
	k := len(chosen)
	share, groups := d.share(chosen), 0
	for _, x := range chosen {
		if d.avail[x] < share {
			return
		}
		groups += d.avail[x] / d.group
	}
	if groups*d.group < d.n {
		return
	}
	rest := slices.Clone(d.avail)
	for _, x := range chosen {
		rest[x] -= share
	}
	remainder := (d.n - share*k) / d.group
	if remainder == 0 {
		d.keep(rest, chosen, nil)
		return
	}
	able := make([]int, 0, k)
	for _, x := range chosen {
		if rest[x] >= d.group {
			able = append(able, x)
		}
	}
	d.placeRemainder(chosen, able, rest, remainder)
}

// placeRemainder tries the takers of so many groups among those able to give
// one, the largest sets of takers first.
func (d *distribution) placeRemainder(chosen, able, rest []int, groups int) {
	after := make([]int, len(rest))
	takers := make([]int, len(able))
	for j := len(able); j > 0; j-- {
		if len(able) > exactTakers {
			d.tryTakers(chosen, largest(able, rest, j), rest, after, groups)
			continue
		}
		subsets(len(able), j, func(at []int) bool {
			for i, a := range at {
				takers[i] = able[a]
			}
			d.tryTakers(chosen, takers[:j], rest, after, groups)
			return true
		})
	}
}

// largest picks the j positions with the largest values, in ascending order.
func largest(positions, values []int, j int) []int {
	picked := slices.Clone(positions)
	slices.SortStableFunc(picked, func(a, b int) int { return values[b] - values[a] })
	picked = picked[:j]
	slices.Sort(picked)
	return picked
}

// tryTakers lets the takers give the groups in turns. A taker that has none
// left is skipped. If no taker has any, the candidate is rejected. (The reference
// then loops forever: kubernetes#140730.)
func (d *distribution) tryTakers(chosen, takers, rest, after []int, groups int) {
	copy(after, rest)
	for groups > 0 {
		before := groups
		for _, x := range takers {
			if groups > 0 && after[x] >= d.group {
				after[x] -= d.group
				groups--
			}
		}
		if groups == before {
			return
		}
	}
	d.keep(after, chosen, takers)
}

// keep keeps a candidate if it is better than the best so far. What all nodes
// are left with has the same sum for every candidate, so that the deviation
// grows with the sum of the squares, and most candidates need no square root.
func (d *distribution) keep(rest, chosen, takers []int) {
	squares := 0
	for _, x := range rest {
		squares += x * x
	}
	inSocket := d.bySocket && d.oneSocket(chosen)
	same := d.chosen != nil && inSocket == d.inSocket
	if d.inSocket && !inSocket || same && squares >= d.squares {
		return
	}
	score := deviation(rest)
	if same && score >= d.score {
		return
	}
	d.score, d.squares, d.inSocket = score, squares, inSocket
	// Copies: the caller writes to these again (kubernetes#141237).
	d.chosen, d.takers = slices.Clone(chosen), slices.Clone(takers)
}

// deviation is the population's standard deviation from the mean, both rounded
// to three decimals.
func deviation(values []int) float64 {
	sum := 0
	for _, x := range values {
		sum += x
	}
	mean := round3(float64(sum) / float64(len(values)))
	var squares float64
	for _, x := range values {
		squares += (float64(x) - mean) * (float64(x) - mean)
	}
	return round3(math.Sqrt(squares / float64(len(values))))
}

func round3(x float64) float64 { return math.Round(x*1000) / 1000 }

// assign takes the shares and the remainder of the chosen candidate.
func (d *distribution) assign(free cpuset.Set) (cpuset.Set, error) {
	var taken cpuset.Builder
	left := d.n
	takeAt := func(x, n int) error {
		set, err := d.packed(free.Intersect(d.part[node].CPUs(int(d.nodes[x]))), n, manner{})
		if err != nil {
			return err
		}
		free = free.Minus(set)
		taken.AddSet(set)
		left -= n
		return nil
	}
	share := d.share(d.chosen)
	for _, x := range d.chosen {
		if err := takeAt(x, share); err != nil {
			return cpuset.Set{}, errdefs.Internalf("take the share of node %d: %w", d.part[node].ID(int(d.nodes[x])), err)
		}
		d.avail[x] -= share
	}
	for left > 0 {
		before := left
		for _, x := range d.takers {
			if left > 0 && d.avail[x] >= d.group {
				if err := takeAt(x, d.group); err != nil {
					return cpuset.Set{}, errdefs.Internalf("take the remainder of node %d: %w", d.part[node].ID(int(d.nodes[x])), err)
				}
				d.avail[x] -= d.group
			}
		}
		if left == before {
			return cpuset.Set{}, errdefs.Internalf("distribute %d cpus: %d do not fit the nodes chosen for them", d.n, left)
		}
	}
	return taken.Set(), nil
}

// subsets calls do with every k-subset of 0..n-1, in lexicographic order, until
// it returns false. The slice is overwritten between the calls.
func subsets(n, k int, do func([]int) bool) {
	at := make([]int, k)
	for i := range at {
		at[i] = i
	}
	for k <= n && do(at) {
		i := k - 1
		for i >= 0 && at[i] == n-k+i {
			i--
		}
		if i < 0 {
			return
		}
		at[i]++
		for j := i + 1; j < k; j++ {
			at[j] = at[j-1] + 1
		}
	}
}
