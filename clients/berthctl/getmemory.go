package main

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	"github.com/berthd/berth/clients/berthctl/table"
)

func (c *ctl) getMemory() *cobra.Command {
	return c.lister(about{
		use:   "memory",
		short: "Memory and huge pages of NUMA nodes with their holders",
		long: `List memory and huge pages of each NUMA node: total, reserved for the system, allocatable and held; then each holder with
its nodes. A claim on several nodes, a GROUP, may lie anywhere on them, so only the sums of a group are exact.`,
		example: `  berthctl get memory
  berthctl get memory -o json`,
	}, true, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		state, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{At: s.past})
		if err != nil {
			return nil, err
		}
		var known names
		if len(state.GetAssignments()) > 0 {
			known = s.names(ctx)
		}
		t := table.New("OWNER", "RESOURCE", "AMOUNT", "NUMA").Wide(s.wide(), "UID").Amounts("AMOUNT")
		for _, a := range state.GetAssignments() {
			for _, b := range a.GetMemory().GetBlocks() {
				t.Row(known.owner(claimOwner(a)), a.GetResource(), number(b.GetBytes()), nodes(b.GetNumaNodes()), a.GetPodUid())
			}
		}
		return &listing{answer: state, head: "policy " + state.GetPolicy(), tables: []section{{table: memoryTable(state)}, {table: t}}}, nil
	})
}

func memoryTable(state *memoryv1.GetStateResponse) *table.Table {
	t := table.New("NODE", "RESOURCE", "TOTAL", "RESERVED", "ALLOCATABLE", "HELD", "FREE", "GROUP").
		Key("NODE", "RESOURCE").Amounts("TOTAL", "RESERVED", "ALLOCATABLE", "HELD", "FREE")
	for _, n := range state.GetNodes() {
		for _, r := range n.GetResources() {
			t.Row(strconv.Itoa(int(n.GetNumaNode())), r.GetResource(), number(r.GetTotalBytes()), number(r.GetReservedBytes()),
				number(r.GetAllocatableBytes()), number(r.GetHeldBytes()), number(r.GetFreeBytes()), usedWith(n))
		}
	}
	return t
}

// usedWith spells the nodes that are used together with a node; empty for none.
func usedWith(n *memoryv1.NodeState) string {
	if len(n.GetGroup().GetIds()) < 2 {
		return ""
	}
	return nodes(n.GetGroup())
}

// freeMemory spells what pods can still have of a node's memory; empty where none is given out by node.
func freeMemory(state *memoryv1.GetStateResponse, node uint32) string {
	for _, n := range state.GetNodes() {
		for _, r := range n.GetResources() {
			if n.GetNumaNode() == node && r.GetResource() == "memory" {
				return number(r.GetFreeBytes())
			}
		}
	}
	return ""
}
