package topology

import (
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// usualLists is the number of lists that a merge handles without allocating memory.
const usualLists = 8

// Merge combines the replies of all providers to one request. It never fails; the result
// decides whether the request fits.
func (m *Manager) Merge(replies []hint.Reply) Result {
	if m.policy == None {
		return Result{Affinity: ledger.Affinity{Any: true}, Admit: true, Stage: Unasked}
	}
	var buffer [usualLists]list
	lists, work := read(buffer[:0], replies)
	r := Result{Work: work, policy: m.policy}
	for i := range lists {
		if lists[i].impossible {
			r.impossible = append(r.impossible, lists[i].source)
		}
	}
	if m.policy == SingleNUMANode {
		m.single(lists, &r)
	} else {
		m.general(lists, &r)
	}
	r.Admit = m.policy == BestEffort || r.Affinity.Preferred
	return r
}

// general merges under best-effort and restricted. A refused restricted merge is completed
// too. Its result explains the refusal and is not used for planning.
func (m *Manager) general(lists []list, r *Result) {
	for i := range lists {
		r.B = max(r.B, lists[i].least)
	}
	if m.preferred(lists, r) {
		r.Stage = Preferred
		return
	}
	for i := range lists {
		r.Approximate = r.Approximate || lists[i].cut
	}
	r.Conflict = conflict(lists, disjoint)
	if m.reachable(lists, r) {
		r.Stage = NotPreferred
		return
	}
	r.Stage = NoCandidate
	r.Affinity = ledger.Affinity{Nodes: m.nodes}
}

// single merges under single-numa-node, which counts only preferred hints that name one
// node or none. A result with all nodes of the machine is returned without nodes; on a
// machine with one node this is every result.
func (m *Manager) single(lists []list, r *Result) {
	common, union, voters := m.nodes, numa.Mask(0), 0
	for i := range lists {
		l := &lists[i]
		l.keepSingles()
		r.B = max(r.B, l.least)
		union |= l.singles
		if !l.abstains {
			voters++
			common &= l.singles
		}
	}
	if voters == 0 {
		common &= union
	}
	lowest, found := common.Lowest()
	switch {
	case !found && (voters > 0 || m.nodes == 0):
		r.Stage = NoCandidate
		r.Affinity = ledger.Affinity{Any: true}
		r.Conflict = conflict(lists, func(a, b *list) bool { return a.singles&b.singles == 0 })
		return
	case !found || m.nodes.Len() == 1:
		r.Affinity = ledger.Affinity{Any: true, Preferred: true}
	default:
		r.Affinity = ledger.Affinity{Nodes: numa.Of(lowest), Preferred: true}
	}
	r.Stage = Preferred
	var losers ranking
	for id := range common.Without(lowest).All() {
		losers.add(candidate{nodes: numa.Of(id)})
	}
	losers.losers(r, 0, true)
	if found {
		r.Path = agreed(lists, numa.Of(lowest))
	} else {
		r.Path = agreed(lists, everything)
	}
}
