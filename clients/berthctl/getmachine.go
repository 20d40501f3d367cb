package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/berthctl/table"
)

func (c *ctl) getCPUs() *cobra.Command {
	return c.verb(about{
		use:   "cpus",
		short: "CPU pools and exclusive CPUs with their owners",
		long: `List the pools of CPUs and then every assignment. A CPU is in the pool "shared", for containers without exclusive
CPUs, or in the pool "exclusive". The lines below that pool have the containers with their exclusive CPUs.`,
		example: `  berthctl get cpus
  berthctl get cpus -o json | jq -r .shared.list`,
	}, func(ctx context.Context, s *session, _ []string) error {
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{})
		if err != nil {
			return err
		}
		return s.show(state, func(w io.Writer) {
			fmt.Fprintf(w, "policy %s%s\n\n", state.GetPolicy(), options(state.GetOptions()))
			t := table.New("POOL", "CPUS", "COUNT", "OWNER").Wide(s.wide(), "NUMA", "UID")
			for _, pool := range []struct {
				name string
				cpus *typesv1.CPUSet
			}{
				{"all", state.GetAll()},
				{"reserved", state.GetReserved()},
				{"shared", state.GetShared()},
				{"exclusive", state.GetExclusive()},
			} {
				t.Row(pool.name, pool.cpus.GetList(), strconv.Itoa(set(pool.cpus).Len()))
			}
			if len(state.GetAssignments()) > 0 {
				known := s.names(ctx)
				for _, a := range state.GetAssignments() {
					cpus := a.GetCpu().GetCpus()
					t.Row(convert.Word(a.GetCpu().GetSharing()), cpus.GetList(), strconv.Itoa(set(cpus).Len()), known.owner(claimOwner(a)),
						hintText(a.GetAffinity()), a.GetPodUid())
				}
			}
			fmt.Fprint(w, t)
		})
	})
}

// claimOwner returns the owner of a claim.
func claimOwner(c *typesv1.Claim) *typesv1.ContainerRef {
	return &typesv1.ContainerRef{PodUid: c.GetPodUid(), ContainerName: c.GetContainerName()}
}

// options spells the options of a policy behind its name.
func options(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	return " (" + strings.Join(pairs(m), ", ") + ")"
}

func (c *ctl) getNUMA() *cobra.Command {
	return c.verb(about{
		use:   "numa",
		short: "NUMA nodes: CPUs, memory, huge pages",
		long: `List the NUMA nodes with their memory and huge pages, their shared CPUs and their assigned CPUs. FREE is the memory that
pods can still get, if the memory manager allocates memory by node.`,
		example: `  berthctl get numa -o wide`,
	}, func(ctx context.Context, s *session, _ []string) error {
		machine, err := s.Node().GetMachine(ctx, &nodev1.GetMachineRequest{})
		if err != nil {
			return err
		}
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{})
		if err != nil {
			return err
		}
		memory, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{})
		if err != nil {
			return err
		}
		return s.show(&nodev1.GetMachineResponse{Nodes: machine.GetNodes()}, func(w io.Writer) {
			shared, taken := set(state.GetShared()), set(state.GetExclusive())
			t := table.New("NODE", "CPUS", "SHARED", "TAKEN", "MEMORY", "FREE", "HUGEPAGES").Wide(s.wide(), "DISTANCES")
			for _, n := range machine.GetNodes() {
				cpus := set(n.GetCpus())
				t.Row(strconv.Itoa(int(n.GetNumaNode())), n.GetCpus().GetList(), cpus.Intersect(shared).String(), cpus.Intersect(taken).String(),
					table.Bytes(n.GetMemoryBytes()), freeMemory(memory, n.GetNumaNode()), hugePages(n), distances(n))
			}
			fmt.Fprint(w, t)
		})
	})
}

// hugePages spells the huge pages of a node: how many of which size.
func hugePages(n *nodev1.NUMANode) string {
	var out []string
	for _, h := range n.GetHugePages() {
		if h.GetCount() > 0 {
			out = append(out, fmt.Sprintf("%dx%s", h.GetCount(), table.Bytes(h.GetPageSizeBytes())))
		}
	}
	return joined(out)
}

// distances spells how far a node is from each, in the order of their ids.
func distances(n *nodev1.NUMANode) string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(n.GetDistances())) {
		out = append(out, fmt.Sprintf("%d:%d", id, n.GetDistances()[id]))
	}
	return joined(out)
}

func (c *ctl) getDevices() *cobra.Command {
	return c.verb(about{
		use:   "devices [RESOURCE]",
		short: "Devices and their holders",
		example: `  berthctl get devices
  berthctl get devices example.com/gpu`,
		args: []string{"[RESOURCE]"},
	}, func(ctx context.Context, s *session, args []string) error {
		state, err := s.Device().GetState(ctx, &devicev1.GetStateRequest{})
		if err != nil {
			return err
		}
		if len(args) == 1 {
			state.Resources = slices.DeleteFunc(state.GetResources(), func(r *devicev1.Resource) bool { return r.GetName() != args[0] })
			if len(state.GetResources()) == 0 {
				return fmt.Errorf("no device plugin has registered %s", args[0])
			}
		}
		return s.show(state, func(w io.Writer) {
			t := table.New("RESOURCE", "DEVICE", "HEALTH", "NUMA", "HOLDER").Wide(s.wide(), "PLUGIN", "SINCE", "UID")
			known := s.names(ctx)
			for _, r := range state.GetResources() {
				for _, d := range r.GetDevices() {
					t.Row(r.GetName(), d.GetDevice().GetId(), health(d.GetDevice().GetHealth()), nodes(d.GetDevice().GetNumaNodes()),
						known.owners(d.GetHolders()), convert.Word(r.GetPluginState()), s.healthSince(d.GetDevice()), holderUIDs(d))
				}
			}
			if t.Len() == 0 {
				fmt.Fprintln(s.err, "there are no devices")
				return
			}
			fmt.Fprint(w, t)
		})
	})
}

// holderUIDs spells the uids of the pods that hold a device.
func holderUIDs(d *devicev1.DeviceState) string {
	var uids []string
	for _, h := range d.GetHolders() {
		if !slices.Contains(uids, h.GetPodUid()) {
			uids = append(uids, h.GetPodUid())
		}
	}
	return joined(uids)
}

func (c *ctl) getResources() *cobra.Command {
	return c.verb(about{
		use:     "resources",
		short:   "Device resources with their counts and plugins",
		long:    `List the resources of device plugins. A plugin is "connected", "stopped", or "expected" (it has not registered again since the start of berthd).`,
		example: `  berthctl get resources -o wide`,
	}, func(ctx context.Context, s *session, _ []string) error {
		list, err := s.Device().ListResources(ctx, &devicev1.ListResourcesRequest{})
		if err != nil {
			return err
		}
		return s.show(list, func(w io.Writer) {
			if len(list.GetResources()) == 0 {
				fmt.Fprintln(s.err, "no device plugin has registered")
				return
			}
			t := table.New("RESOURCE", "CAPACITY", "ALLOCATABLE", "IN-USE", "PLUGIN").Wide(s.wide(), "ENDPOINT", "PRE-START", "PREFERRED")
			for _, r := range list.GetResources() {
				t.Row(r.GetName(), fmt.Sprint(r.GetCapacity()), fmt.Sprint(r.GetAllocatable()), fmt.Sprint(r.GetInUse()), convert.Word(r.GetPluginState()),
					r.GetEndpoint(), yesNo(r.GetPreStartRequired()), yesNo(r.GetPreferredAllocationAvailable()))
			}
			fmt.Fprint(w, t)
		})
	})
}
