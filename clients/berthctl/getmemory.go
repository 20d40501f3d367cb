package main

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	"github.com/berthd/berth/clients/berthctl/table"
)

func (c *ctl) getMemory() *cobra.Command {
	return c.verb(about{
		use:   "memory",
		short: "Memory and huge pages of NUMA nodes with their holders",
		long: `List memory and huge pages of each NUMA node: total, reserved for the system, allocatable and held; then each holder with
its nodes. A claim on several nodes, a GROUP, may lie anywhere on them, so only the sums of a group are exact.`,
		example: `  berthctl get memory
  berthctl get memory -o json`,
	}, func(ctx context.Context, s *session, _ []string) error {
		state, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{})
		if err != nil {
			return err
		}
		return s.show(state, func(w io.Writer) {
			fmt.Fprintf(w, "policy %s\n", state.GetPolicy())
			if len(state.GetNodes()) > 0 {
				fmt.Fprintf(w, "\n%s", memoryTable(state))
			}
			if len(state.GetAssignments()) == 0 {
				return
			}
			known := s.names(ctx)
			t := table.New("OWNER", "RESOURCE", "AMOUNT", "NUMA").Wide(s.wide(), "UID")
			for _, a := range state.GetAssignments() {
				for _, b := range a.GetMemory().GetBlocks() {
					t.Row(known.owner(claimOwner(a)), a.GetResource(), table.Bytes(b.GetBytes()), nodes(b.GetNumaNodes()), a.GetPodUid())
				}
			}
			fmt.Fprintf(w, "\n%s", t)
		})
	})
}

func memoryTable(state *memoryv1.GetStateResponse) *table.Table {
	t := table.New("NODE", "RESOURCE", "TOTAL", "RESERVED", "ALLOCATABLE", "HELD", "FREE", "GROUP")
	for _, n := range state.GetNodes() {
		for _, r := range n.GetResources() {
			t.Row(strconv.Itoa(int(n.GetNumaNode())), r.GetResource(), table.Bytes(r.GetTotalBytes()), table.Bytes(r.GetReservedBytes()),
				table.Bytes(r.GetAllocatableBytes()), table.Bytes(r.GetHeldBytes()), table.Bytes(r.GetFreeBytes()), usedWith(n))
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
				return table.Bytes(r.GetFreeBytes())
			}
		}
	}
	return ""
}
