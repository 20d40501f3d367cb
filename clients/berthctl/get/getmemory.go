package get

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func getMemory(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "memory",
		Short: "Memory and huge pages of NUMA nodes with their holders",
		Long: `List memory and huge pages of each NUMA node: total, reserved for the system, allocatable and held; then each holder with
its nodes. A claim on several nodes, a GROUP, may lie anywhere on them, so only the sums of a group are exact.`,
		Example: `  berthctl get memory
  berthctl get memory -o json`,
	}, true, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		state, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{At: s.Past})
		if err != nil {
			return nil, err
		}
		var known command.Names
		if len(state.GetAssignments()) > 0 {
			known = s.Names(ctx)
		}
		t := table.New("OWNER", "RESOURCE", "AMOUNT", "NUMA").Wide(s.Wide(), "UID")
		for _, a := range state.GetAssignments() {
			for _, b := range a.GetMemory().GetBlocks() {
				t.Row(known.Owner(claimOwner(a)), a.GetResource(), table.Bytes(b.GetBytes()), sentences.Nodes(b.GetNumaNodes()),
					a.GetPodUid())
			}
		}
		return &command.Listing{Answer: state, Head: "policy " + state.GetPolicy(),
			Tables: []command.Section{{Table: memoryTable(state)}, {Table: t}}}, nil
	})
}

func memoryTable(state *memoryv1.GetStateResponse) *table.Table {
	t := table.New("NODE", "RESOURCE", "TOTAL", "RESERVED", "ALLOCATABLE", "HELD", "TAKEN", "FREE", "GROUP").
		Key("NODE", "RESOURCE")
	for _, n := range state.GetNodes() {
		for _, r := range n.GetResources() {
			t.Row(strconv.Itoa(int(n.GetNumaNode())), r.GetResource(), table.Bytes(r.GetTotalBytes()),
				table.Bytes(r.GetReservedBytes()),
				table.Bytes(r.GetAllocatableBytes()), table.Bytes(r.GetHeldBytes()),
				table.Bytes(r.GetTakenBytes()), table.Bytes(r.GetFreeBytes()), usedWith(n))
		}
	}
	return t
}

// usedWith returns the nodes that are used together with a node; empty for none.
func usedWith(n *memoryv1.NodeState) string {
	if len(n.GetGroup().GetIds()) < 2 {
		return ""
	}
	return sentences.Nodes(n.GetGroup())
}

// freeMemory returns what pods can still have of a node's memory; empty where none is allocated by node.
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
