package machine

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

const setHugePagesLong = `Set how many huge pages NUMA nodes have. SIZE is a page size such as 2Mi or 1Gi, and COUNT all pages of this size, those in
use too. Of several nodes, COUNT is the sum, which is spread evenly: the nodes with the lowest numbers get one more each if it cannot
be divided. Without --node, COUNT is a list with the number of each node, as in the kernel's parameter hugepages. --dry-run shows
the number of each node.

The answer has the numbers that the kernel has given. It gives fewer if there is too little free memory in one piece, which
is less likely soon after the boot. The exit code is 3 then.

Fewer pages than pods have on a node, or than are reserved there, are refused. berthd needs node.setHugePages of its
configuration. The pages last until the next boot; the kernel's parameters set those of the boot.`

func HugePages(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use: "hugepages", Short: "Set the huge pages of NUMA nodes", Example: "  berthctl hugepages set --node 1 2Mi=512",
	}, setHugePages(c))
}

func setHugePages(c *command.Ctl) *cobra.Command {
	var nodes string
	var dryRun bool
	cmd := c.Verb(command.About{
		Use:   "set [--node NODES] SIZE=COUNT",
		Short: "Set the huge pages of NUMA nodes",
		Long:  setHugePagesLong,
		Example: `  berthctl hugepages set --node 1 2Mi=512
  berthctl hugepages set --node 0-3 2Mi=4096 --dry-run
  berthctl hugepages set 2Mi=0:512,1:256`,
		Args: []string{"SIZE=COUNT"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		pools, err := poolsOf(nodes, args[0])
		if err != nil {
			return err
		}
		answer, err := s.Node().SetHugePages(ctx, &nodev1.SetHugePagesRequest{Pools: pools, DryRun: dryRun})
		if err != nil {
			return err
		}
		if err := s.Show(answer, func(w io.Writer) { showPools(w, answer, dryRun) }); err != nil {
			return err
		}
		differs := func(p *nodev1.HugePagePoolResult) bool { return p.GetCount() != p.GetRequestedCount() }
		if !dryRun && slices.ContainsFunc(answer.GetPools(), differs) {
			return command.Verdict(command.ExitRejected)
		}
		return nil
	})
	f := cmd.Flags()
	f.StringVar(&nodes, "node", "", "NUMA nodes, such as 1 or 0-3")
	f.BoolVar(&dryRun, "dry-run", false, "only check whether the numbers can be set")
	return cmd
}

// poolsOf reads the nodes and the numbers of pages of a command.
func poolsOf(list, arg string) (pools []*nodev1.HugePagePool, err error) {
	const verb = "hugepages set"
	text, number, _ := strings.Cut(arg, "=")
	size, bad := workload.HugePageSize(workload.Resource(workload.HugePagesPrefix + text))
	if strings.Contains(number, ":") {
		if bad != nil {
			return nil, command.Usagef(verb, "expected a page size with numbers of pages, such as 2Mi=0:512,1:256, got %q", arg)
		}
		if list != "" {
			return nil, command.Usagef(verb, "--node and a number of each node (%q): expected one of both", arg)
		}
		return poolsByNode(uint64(size), number)
	}
	count, noNumber := strconv.ParseUint(number, 10, 64)
	if bad != nil || noNumber != nil {
		return nil, command.Usagef(verb, "expected a page size with a number of pages, such as 2Mi=512, got %q", arg)
	}
	nodes, err := numa.Parse(list)
	if err != nil || nodes.IsEmpty() {
		return nil, command.Usagef(verb, "--node: expected NUMA nodes such as 1 or 0-3, got %q", list)
	}
	each, rest := count/uint64(nodes.Len()), count%uint64(nodes.Len())
	for id := range nodes.All() {
		pool := &nodev1.HugePagePool{NumaNode: uint32(id), PageSizeBytes: uint64(size), Count: each}
		if rest > 0 {
			rest--
			pool.Count++
		}
		pools = append(pools, pool)
	}
	return pools, nil
}

// poolsByNode reads a number of pages for each node.
func poolsByNode(size uint64, list string) (pools []*nodev1.HugePagePool, err error) {
	var seen numa.Mask
	for entry := range strings.SplitSeq(list, ",") {
		id, number, _ := strings.Cut(entry, ":")
		node, noNode := strconv.ParseUint(id, 10, 32)
		count, noNumber := strconv.ParseUint(number, 10, 64)
		if noNode != nil || noNumber != nil || node >= numa.MaxNodes {
			return nil, command.Usagef("hugepages set", "expected NUMA nodes with numbers of pages, such as 2Mi=0:512,1:256, got %q", entry)
		}
		if seen.Contains(int(node)) {
			return nil, command.Usagef("hugepages set", "NUMA node %d has two numbers of pages", node)
		}
		seen = seen.With(int(node))
		pools = append(pools, &nodev1.HugePagePool{NumaNode: uint32(node), PageSizeBytes: size, Count: count})
	}
	return pools, nil
}

// showPools prints what the kernel has given.
func showPools(w io.Writer, answer *nodev1.SetHugePagesResponse, dryRun bool) {
	if dryRun {
		t := table.New("NODE", "SIZE", "PAGES", "WOULD-BE")
		for _, p := range answer.GetPools() {
			t.Row(strconv.Itoa(int(p.GetNumaNode())), table.Bytes(p.GetPageSizeBytes()), command.Number(p.GetCount()),
				command.Number(p.GetRequestedCount()))
		}
		fmt.Fprint(w, t)
		return
	}
	t := table.New("NODE", "SIZE", "BEFORE", "REQUESTED", "PAGES")
	for _, p := range answer.GetPools() {
		t.Row(strconv.Itoa(int(p.GetNumaNode())), table.Bytes(p.GetPageSizeBytes()), command.Number(p.GetCountBefore()),
			command.Number(p.GetRequestedCount()), command.Number(p.GetCount()))
	}
	fmt.Fprint(w, t)
	for _, p := range answer.GetPools() {
		if p.GetCount() != p.GetRequestedCount() {
			fmt.Fprintf(w, "the kernel gave %d of %d pages on NUMA node %d\n", p.GetCount(), p.GetRequestedCount(), p.GetNumaNode())
		}
	}
}
