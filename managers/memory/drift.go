package memory

import (
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/ledger"
)

// RuleDrift is the rule of findings about nodes that have another amount of
// memory than before: a boot may move some pages between nodes.
const RuleDrift ledger.Rule = "drift"

// Drift compares what nodes had at an earlier time (State then) with what they
// have now, and what claims hold with what is allocatable now. All findings are
// of kind Policy: claims are kept, and new decisions follow the new amounts. Of
// claims that no longer fit into a group there is one finding with
// ledger.RuleMemory, which names the owners.
func (m *Manager) Drift(view *ledger.View, before []NodeState) []ledger.Finding {
	if m.policy == PolicyNone {
		return nil
	}
	var out []ledger.Finding
	note := func(resource, format string, args ...any) {
		out = append(out, ledger.Finding{
			Kind: ledger.Policy, Rule: RuleDrift, Resource: resource, Text: fmt.Sprintf(format, args...),
		})
	}
	now := m.State(view)
	for _, old := range before {
		at := slices.IndexFunc(now, func(n NodeState) bool { return n.Node == old.Node })
		if at < 0 {
			note("", "NUMA node %d is gone", old.Node)
			continue
		}
		for _, was := range old.Resources {
			is := now[at].resource(was.Resource)
			if is.Total != was.Total {
				note(was.Resource, "%s of NUMA node %d was %s and is %s", was.Resource, old.Node, quantity(was.Total), quantity(is.Total))
			} else if is.Allocatable != was.Allocatable {
				note(was.Resource, "allocatable %s of NUMA node %d was %s and is %s",
					was.Resource, old.Node, quantity(was.Allocatable), quantity(is.Allocatable))
			}
		}
	}
	for _, n := range now {
		if !slices.ContainsFunc(before, func(old NodeState) bool { return n.Node == old.Node }) && len(before) > 0 {
			note("", "NUMA node %d is new", n.Node)
		}
	}
	return append(out, m.overcommitted(view)...)
}

// resource returns the state of a resource; zero if the node does not know it.
func (n *NodeState) resource(name string) ResourceState {
	for _, r := range n.Resources {
		if r.Resource == name {
			return r
		}
	}
	return ResourceState{Resource: name}
}

// overcommitted finds the groups that hold more than is allocatable there, and
// the owners of what no node has any more.
func (m *Manager) overcommitted(view *ledger.View) []ledger.Finding {
	t := m.table(view)
	var out []ledger.Finding
	for _, c := range m.capacities {
		free := t.free(c)
		for _, group := range t.everyGroup() {
			missing := -free.sum(group)
			owners := holders(view, c.resource, group)
			if missing <= 0 || len(owners) == 0 {
				continue
			}
			names := make([]string, len(owners))
			for i, o := range owners {
				names[i] = o.String()
			}
			out = append(out, ledger.Finding{
				Kind: ledger.Policy, Rule: ledger.RuleMemory, Resource: c.resource, Owner: owners[0],
				Text: fmt.Sprintf("%s hold %s of %s on NUMA nodes %s, which is %s more than is allocatable there",
					strings.Join(names, ", "), quantity(uint64(c.allocatable.sum(group)+missing)), c.resource, group, quantity(uint64(missing))),
			})
		}
	}
	for c := range view.Claims() {
		bytes := slices.ContainsFunc(c.Memory, func(b ledger.Block) bool { return b.Bytes > 0 })
		if c.Provider == Name && bytes && m.find(c.Resource) == nil {
			out = append(out, ledger.Finding{
				Kind: ledger.Policy, Rule: ledger.RuleMemory, Resource: c.Resource, Owner: c.Owner,
				Text: fmt.Sprintf("%s holds %s, which no NUMA node has any more", c.Owner, c.Resource),
			})
		}
	}
	return out
}
