package machine

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
	"github.com/berthd/berth/managers/cpuset"
)

const topologyLong = `Show sockets, NUMA nodes, groups of CPUs that share a cache, cores and memory of the machine.

--export writes the machine as a snapshot, to standard output or into FILE. 'berthd --machine FILE' uses such a snapshot
instead of the machine that it runs on.`

func Topology(c *command.Ctl) *cobra.Command {
	var export bool
	cmd := c.Verb(command.About{
		Use:   "topology [--export [FILE]]",
		Short: "Show sockets, NUMA nodes, caches and cores of the machine",
		Long:  topologyLong,
		Example: `  berthctl topology -o wide
  berthctl topology --export machine.json`,
		Args: []string{"[FILE]"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if len(args) > 0 && !export {
			return command.Usagef("topology", "%s: a file is for --export", args[0])
		}
		machine, err := s.Node().GetMachine(ctx, &nodev1.GetMachineRequest{})
		switch {
		case err != nil:
			return err
		case export && len(args) > 0:
			return os.WriteFile(args[0], machine.GetSnapshotJson(), 0o644)
		case export:
			_, err := s.Out.Write(machine.GetSnapshotJson())
			return err
		}
		return s.Show(machine, func(w io.Writer) { showMachine(s.Ctl, w, machine) })
	})
	cmd.Flags().BoolVar(&export, "export", false, "write a snapshot of the machine")
	return cmd
}

// place is a group of CPUs that share a cache, on one node of one socket.
type place struct{ socket, node, cache uint32 }

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.socket, o.socket), cmp.Compare(p.node, o.node), cmp.Compare(p.cache, o.cache))
}

func showMachine(c *command.Ctl, w io.Writer, m *nodev1.GetMachineResponse) {
	// The threads of each core, by place.
	places := make(map[place]map[uint32]*cpuset.Builder)
	sockets, cores, caches := map[uint32]bool{}, map[uint32]bool{}, map[uint32]bool{}
	for _, cpu := range m.GetCpus() {
		p := place{cpu.GetSocket(), cpu.GetNumaNode(), cpu.GetUncoreCache()}
		if places[p] == nil {
			places[p] = make(map[uint32]*cpuset.Builder)
		}
		if places[p][cpu.GetCore()] == nil {
			places[p][cpu.GetCore()] = new(cpuset.Builder)
		}
		places[p][cpu.GetCore()].Add(int(cpu.GetCpu()))
		sockets[p.socket], cores[cpu.GetCore()], caches[p.cache] = true, true, true
	}
	fmt.Fprintln(w, strings.Join([]string{
		table.Count(len(sockets), "socket"), table.Count(len(m.GetNodes()), "NUMA node"), table.Count(len(caches), "cache group"),
		table.Count(len(cores), "core"), table.Count(len(m.GetCpus()), "CPU"),
	}, ", "))
	for _, of := range []struct {
		name string
		list string
	}{{"offline", m.GetOfflineCpus().GetList()}, {"isolated", m.GetIsolatedCpus().GetList()},
		{"without a tick", m.GetNohzFullCpus().GetList()}} {
		if of.list != "" {
			fmt.Fprintf(w, "%s: %s\n", of.name, sentences.CPUNoun(of.list))
		}
	}
	if c.Wide() {
		fmt.Fprintf(w, "fingerprint: %s\n", m.GetFingerprint())
	}
	fmt.Fprintf(w, "\n%v\n", placeTable(c, places))
	t := table.New("NODE", "CPUS", "MEMORY", "HUGEPAGES", "DISTANCES")
	for _, n := range m.GetNodes() {
		t.Row(strconv.Itoa(int(n.GetNumaNode())), n.GetCpus().GetList(), table.Bytes(n.GetMemoryBytes()), command.HugePageCells(n),
			command.Distances(n))
	}
	fmt.Fprint(w, t)
}

// placeTable has a row for each group of CPUs; a wide one has the threads of each core.
func placeTable(c *command.Ctl, places map[place]map[uint32]*cpuset.Builder) *table.Table {
	t := table.New("SOCKET", "NODE", "CACHE", "CORES", "CPUS").Wide(c.Wide(), "THREADS")
	for _, p := range slices.SortedFunc(maps.Keys(places), place.compare) {
		var all cpuset.Builder
		var threads []string
		for _, core := range slices.Sorted(maps.Keys(places[p])) {
			s := places[p][core].Set()
			all.AddSet(s)
			threads = append(threads, s.String())
		}
		t.Row(fmt.Sprint(p.socket), fmt.Sprint(p.node), fmt.Sprint(p.cache), strconv.Itoa(len(places[p])), all.Set().String(),
			strings.Join(threads, " "))
	}
	return t
}
