package topology

import (
	"cmp"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// candidate is a set of nodes that some choice leaves, with its rank among candidates of
// the same stage: the smaller tier wins, then the smaller distance, then the smaller
// integer.
type candidate struct {
	tier     int
	distance int64
	nodes    numa.Mask
}

func (c candidate) compare(o candidate) int {
	return cmp.Or(cmp.Compare(c.tier, o.tier), cmp.Compare(c.distance, o.distance), cmp.Compare(c.nodes, o.nodes))
}

// tier ranks the sizes of candidates that are not preferred: b, b-1, … 1, then
// b+1, b+2, …
func tier(size, b int) int {
	if size <= b {
		return b - size
	}
	return size
}

// distance is compared between sets of one size, before their value.
func (m *Manager) distance(nodes numa.Mask) int64 {
	if !m.closest {
		return 0
	}
	return m.distances.Sum(nodes)
}

// ranking keeps the best few of its candidates, without duplicates.
type ranking struct {
	best [1 + keptLosers]candidate
	kept int
	seen int
}

// late returns whether a candidate of a tier cannot be kept, so that its distance is not
// needed.
func (r *ranking) late(tier int) bool {
	return r.kept == len(r.best) && tier > r.best[r.kept-1].tier
}

func (r *ranking) add(c candidate) {
	at := r.kept
	for at > 0 {
		order := c.compare(r.best[at-1])
		if order == 0 {
			return
		}
		if order > 0 {
			break
		}
		at--
	}
	r.seen++
	if at == len(r.best) {
		return
	}
	r.kept = min(r.kept+1, len(r.best))
	copy(r.best[at+1:r.kept], r.best[at:r.kept-1])
	r.best[at] = c
}

// consider adds a set of nodes that is not preferred; b is the result's B.
func (r *ranking) consider(m *Manager, nodes numa.Mask, b int) {
	t := tier(nodes.Len(), b)
	if r.late(t) {
		r.seen++
		return
	}
	r.add(candidate{tier: t, distance: m.distance(nodes), nodes: nodes})
}

// losers appends the candidates from the given index on to the result's losers.
func (r *ranking) losers(res *Result, from int, preferred bool) {
	if r.kept <= from {
		return
	}
	res.Losers = make([]ledger.Affinity, 0, r.kept-from)
	for _, c := range r.best[from:r.kept] {
		res.Losers = append(res.Losers, ledger.Affinity{Nodes: c.nodes, Preferred: preferred})
	}
	res.Omitted = r.seen - r.kept
}
