package cpu

import (
	"context"
	"fmt"
	"math/bits"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// Up to so many nodes with CPUs the node sets are listed: at most 255, and 4095
// under align-by-socket. On larger machines a rule stands for them. What
// align-by-socket prefers beyond the smallest size, a rule cannot say.
const (
	listedNodes        = 8
	listedNodesAligned = 12
)

// Hints tells between which node sets the CPUs of a container or pod can come
// from. It has no answer, which means no preference, under the policy none and
// for requests that get no CPUs of their own. An owner that holds CPUs already
// is answered from these; if it now asks for another number, the answer is
// Impossible. It never returns an error.
func (m *Manager) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	if m.policy == PolicyNone {
		return nil, nil
	}
	h := m.holding(view, req.Pod)
	if h.left {
		return nil, nil
	}
	answer := m.podHints
	if req.Scope() == hint.ContainerScope {
		answer = func(h *holding) (hint.Answer, bool) { return m.containerHints(h, req.Container) }
	}
	if a, ok := answer(h); ok {
		return []hint.ResourceAnswer{{Resource: Resource, Answer: a}}, nil
	}
	return nil, nil
}

func (m *Manager) containerHints(h *holding, i int) (hint.Answer, bool) {
	n := h.of(&h.pod.Containers[i])
	if n == 0 {
		return hint.Answer{}, false
	}
	if held := h.claims[i]; held != nil {
		if size := held.Set.Len(); size != n {
			return impossible("container %q has %d CPUs already and now asks for %d", h.pod.Containers[i].Name, size, n), true
		}
		return m.generate(held.Set, cpuset.Set{}, n), true
	}
	return m.generate(h.available, h.reusable(i), n), true
}

func (m *Manager) podHints(h *holding) (hint.Answer, bool) {
	total := h.total()
	if total == 0 {
		return hint.Answer{}, false
	}
	if h.whole {
		if starved := h.starved(total); starved != nil {
			return impossible("%v", starved), true
		}
	}
	for i, held := range h.claims {
		if held == nil {
			continue
		}
		if size, n := held.Set.Len(), h.of(&h.pod.Containers[i]); size != n {
			return impossible("container %q has %d CPUs already and now asks for %d", h.pod.Containers[i].Name, size, n), true
		}
	}
	held := h.union()
	if held.Len() == total {
		return m.generate(held, cpuset.Set{}, total), true
	}
	return m.generate(h.available, held, total), true
}

func impossible(format string, args ...any) hint.Answer {
	return hint.Answer{Kind: hint.Impossible, Reason: fmt.Sprintf(format, args...)}
}

// generate describes the node sets that can give n CPUs: they contain every node
// of a reusable CPU, and together with all reusable CPUs they have enough
// available ones. Those of the size that the request needs on the idle machine
// are preferred.
func (m *Manager) generate(available, reusable cpuset.Set, n int) hint.Answer {
	nodes := m.part[node]
	rule := &hint.Rule{
		Universe:      m.topo.CPUNodeMask(),
		Must:          m.topo.NodesOf(reusable),
		Need:          uint64(max(n-reusable.Len(), 0)),
		PreferredSize: m.narrowest(n),
	}
	free := 0
	for i := range nodes.Len() {
		has := nodes.CPUs(i).IntersectLen(available)
		rule.Weights[nodes.ID(i)] = uint64(has)
		free += has
	}
	if have := free + reusable.Len(); have < n {
		return impossible("%s", hint.TooFew(n, have, "CPU", "CPUs"))
	}
	if m.sets != nil {
		return hint.Answer{Kind: hint.Options, Hints: m.list(rule)}
	}
	return hint.Answer{Kind: hint.ByRule, Rule: rule}
}

// nodeSet is one set of nodes with CPUs.
type nodeSet struct {
	nodes numa.Mask
	// at has a bit for each node by its place among the nodes with CPUs.
	at            uint16
	size, sockets int
}

// nodeSets lists all sets of nodes with CPUs in enumeration order, with the
// number of sockets that each touches; none if there are too many to be listed.
func (m *Manager) nodeSets() []nodeSet {
	t, most := m.table, listedNodes
	if m.options.bySocket {
		most = listedNodesAligned
	}
	if t.part[node].Len() > most {
		return nil
	}
	sets := make([]nodeSet, 0, 1<<t.part[node].Len()-1)
	for nodes := range numa.Subsets(t.topo.CPUNodeMask()) {
		s := nodeSet{nodes: nodes, size: nodes.Len()}
		for i := range t.part[node].Len() {
			if nodes.Contains(t.part[node].ID(i)) {
				s.at |= 1 << i
			}
		}
		for range t.part[socket].Touched(t.topo.CPUsInNodes(nodes)) {
			s.sockets++
		}
		sets = append(sets, s)
	}
	return sets
}

// list writes the node sets of a rule out.
func (m *Manager) list(rule *hint.Rule) []hint.Hint {
	var buffer [1 << listedNodes]uint64
	have := buffer[:] // by nodeSet.at
	if n := m.part[node].Len(); n > listedNodes {
		have = make([]uint64, 1<<n)
	}
	for at := 1; at < 1<<m.part[node].Len(); at++ {
		i := bits.TrailingZeros(uint(at))
		have[at] = have[at&(at-1)] + rule.Weights[m.part[node].ID(i)]
	}
	sockets := 0
	if m.options.bySocket {
		sockets = m.socketsNeeded(rule.PreferredSize)
	}
	hints := make([]hint.Hint, 0, len(m.sets))
	for i := range m.sets {
		s := &m.sets[i]
		if have[s.at] >= rule.Need && rule.Must.IsSubsetOf(s.nodes) {
			hints = append(hints, hint.Hint{Nodes: s.nodes, Preferred: s.size == rule.PreferredSize || s.sockets == sockets})
		}
	}
	return hints
}

// socketsNeeded is the number of sockets that so many nodes span, which makes
// node sets preferred under align-by-socket (KEP-3327); 0 if the machine does
// not tell.
func (m *Manager) socketsNeeded(nodes int) int {
	if m.topo.NumSockets() == 0 {
		return 0
	}
	perSocket := m.topo.NumNUMANodes() / m.topo.NumSockets()
	if perSocket == 0 {
		return 0
	}
	return (nodes + perSocket - 1) / perSocket
}

// narrowest is the smallest number of nodes that have n CPUs in total, busy and
// reserved ones included; all nodes if even these have fewer.
func (m *Manager) narrowest(n int) int {
	sizes := make([]int, m.part[node].Len())
	for i := range sizes {
		sizes[i] = m.part[node].Size(i)
	}
	slices.SortFunc(sizes, func(a, b int) int { return b - a })
	for k, size := range sizes {
		if n -= size; n <= 0 {
			return k + 1
		}
	}
	return len(sizes)
}
