package memory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// RuleDrift is the rule of findings about nodes that have another amount of
// memory than before: a boot may move some pages between nodes.
const RuleDrift check.Rule = "drift"

// Baseline returns what pods can have of each node, by node and resource; nothing
// under the policy None. A ledger keeps it for the Drift of a later start.
func (m *Manager) Baseline() []ledger.NodeMemory {
	var out []ledger.NodeMemory
	for _, id := range m.ids {
		for _, c := range m.capacities {
			if c.nodes.Contains(id) {
				out = append(out, ledger.NodeMemory{
					Node: id, Resource: c.resource, Total: uint64(c.total[id]), Allocatable: uint64(c.allocatable[id]),
				})
			}
		}
	}
	return out
}

// Drift compares what nodes had at an earlier time (Baseline then) with what they
// have now, and what claims hold with what is allocatable now. All findings are of
// kind Policy: claims are kept, and new decisions follow the new amounts. Of
// claims that no longer fit into a group there is one finding with
// check.RuleMemory, which names the owners.
func (m *Manager) Drift(view *ledger.View, before []ledger.NodeMemory) []check.Finding {
	if m.policy == PolicyNone {
		return nil
	}
	var out []check.Finding
	note := func(resource, format string, args ...any) {
		out = append(out, check.Finding{
			Kind: check.Policy, Rule: RuleDrift, Resource: resource, Text: fmt.Sprintf(format, args...),
		})
	}
	for i, was := range before {
		switch is := m.has(was.Node, was.Resource); {
		case !m.nodes.Contains(was.Node):
			if i == 0 || before[i-1].Node != was.Node {
				note("", "NUMA node %d is gone", was.Node)
			}
		case is.Total != was.Total:
			note(was.Resource, "%s of NUMA node %d was %s and is %s", was.Resource, was.Node, quantity(was.Total), quantity(is.Total))
		case is.Allocatable != was.Allocatable:
			note(was.Resource, "allocatable %s of NUMA node %d was %s and is %s",
				was.Resource, was.Node, quantity(was.Allocatable), quantity(is.Allocatable))
		}
	}
	for _, id := range m.ids {
		if len(before) > 0 && !slices.ContainsFunc(before, func(was ledger.NodeMemory) bool { return was.Node == id }) {
			note("", "NUMA node %d is new", id)
		}
	}
	return append(out, m.overcommitted(view)...)
}

// has returns what a node has of a resource; zero if it does not know it.
func (m *Manager) has(node int, resource string) ledger.NodeMemory {
	out := ledger.NodeMemory{Node: node, Resource: resource}
	if c := m.find(resource); c != nil && m.nodes.Contains(node) {
		out.Total, out.Allocatable = uint64(c.total[node]), uint64(c.allocatable[node])
	}
	return out
}

// overcommitted finds the groups that hold more than is allocatable there, and
// the owners of what no node has any more.
func (m *Manager) overcommitted(view *ledger.View) []check.Finding {
	t := m.table(view)
	var out []check.Finding
	for _, c := range m.capacities {
		free := t.free(c)
		for _, group := range t.everyGroup() {
			missing := -free.sum(group)
			owners := m.holders(view, c.resource, group)
			if missing <= 0 || len(owners) == 0 {
				continue
			}
			names := make([]string, len(owners))
			for i, o := range owners {
				names[i] = o.String()
			}
			out = append(out, check.Finding{
				Kind: check.Policy, Rule: check.RuleMemory, Resource: c.resource, Owner: owners[0],
				Text: fmt.Sprintf("%s hold %s of %s on NUMA nodes %s, which is %s more than is allocatable there",
					strings.Join(names, ", "), quantity(uint64(c.allocatable.sum(group)+missing)), c.resource, group,
					quantity(uint64(missing))),
			})
		}
	}
	for c := range view.Claims() {
		bytes := slices.ContainsFunc(c.Memory, func(b ledger.Block) bool { return b.Bytes > 0 })
		if c.Provider == Name && bytes && m.find(c.Resource) == nil {
			out = append(out, check.Finding{
				Kind: check.Policy, Rule: check.RuleMemory, Resource: c.Resource, Owner: c.Owner,
				Text: fmt.Sprintf("%s holds %s, which no NUMA node has any more", c.Owner, c.Resource),
			})
		}
	}
	return out
}
