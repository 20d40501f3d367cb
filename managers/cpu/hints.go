package cpu

import (
	"context"
	"fmt"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// maxListed is how many node sets are tried to list those of a request under
// align-by-socket, which prefers sets that a rule cannot describe: all sets of 12
// nodes with CPUs. On larger machines the option changes no preference.
const maxListed = 1 << 12

// Hints lists the node sets from which the CPUs of a container or pod can come.
// It has no answer, which means no preference, under the policy none and
// for requests that get no CPUs of their own. An owner that holds CPUs already
// is answered from these; if it now requests another number, the answer is
// Impossible. It never returns an error.
func (m *Manager) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	if m.policy == PolicyNone {
		return nil, nil
	}
	h := m.allocation(view, req.Pod)
	if h.Left {
		return nil, nil
	}
	answer := m.podHints
	if req.Scope() == hint.ContainerScope {
		answer = func(h *allocation) (hint.Answer, bool) { return m.containerHints(h, req) }
	}
	if a, ok := answer(h); ok {
		return []hint.ResourceAnswer{{Resource: Resource, Answer: a}}, nil
	}
	return nil, nil
}

func (m *Manager) containerHints(h *allocation, req hint.Request) (hint.Answer, bool) {
	i := req.Container
	n := h.of(&h.Pod.Containers[i])
	if n == 0 {
		return hint.Answer{}, false
	}
	if held := h.claims[i]; held != nil {
		if size := held.Set.Len(); size != n {
			return impossible("container %q has %d CPUs already and now requests %d", h.Pod.Containers[i].Name, size, n), true
		}
		return m.generate(held.Set, cpuset.Set{}, n), true
	}
	if req.Borrows {
		near := cpuset.Set{}
		if req.Near != "" {
			near = h.held(req.Near)
		}
		return m.generate(h.available.Union(h.loan(req)).Minus(near), near, n), true
	}
	return m.generate(h.available, h.reusable(i), n), true
}

func (m *Manager) podHints(h *allocation) (hint.Answer, bool) {
	total := h.total()
	if total == 0 {
		return hint.Answer{}, false
	}
	if h.Whole {
		if starved := h.starved(total); starved != nil {
			return impossible("%v", starved), true
		}
	}
	for i, held := range h.claims {
		if held == nil {
			continue
		}
		if size, n := held.Set.Len(), h.of(&h.Pod.Containers[i]); size != n {
			return impossible("container %q has %d CPUs already and now requests %d", h.Pod.Containers[i].Name, size, n), true
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
	if m.options.bySocket {
		if hints, err := rule.Expand(maxListed); err == nil {
			m.preferBySocket(hints, rule.PreferredSize)
			return hint.Answer{Kind: hint.Options, Hints: hints}
		}
	}
	return hint.Answer{Kind: hint.ByRule, Rule: rule}
}

// preferBySocket prefers, in addition to the sets of the preferred size, those that touch
// as few sockets as that many nodes need (KEP-3327).
func (m *Manager) preferBySocket(hints []hint.Hint, preferredSize int) {
	sockets := m.socketsNeeded(preferredSize)
	for i := range hints {
		touched := 0
		for range m.part[socket].Touched(m.topo.CPUsInNodes(hints[i].Nodes)) {
			touched++
		}
		hints[i].Preferred = hints[i].Preferred || touched == sockets
	}
}

// socketsNeeded is the number of sockets that so many nodes span; 0 if the machine
// has no sockets.
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
	s := numa.Search{Universe: m.topo.CPUNodeMask(), Needs: []numa.Need{{Weights: &m.perNode, Amount: uint64(n)}}}
	return s.Fewest()
}
