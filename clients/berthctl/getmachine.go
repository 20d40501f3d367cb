package main

import (
	"cmp"
	"context"
	"fmt"
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
	return c.lister(about{
		use:   "cpus",
		short: "CPU pools and exclusive CPUs with their owners",
		long: `List the pools of CPUs, and below each pool the containers that have CPUs of it, ordered by CPU. A CPU is in the pool
"shared", for containers without exclusive CPUs, or in the pool "exclusive".`,
		example: `  berthctl get cpus
  berthctl get cpus -o json | jq -r .shared.list`,
	}, true, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{At: s.past})
		if err != nil {
			return nil, err
		}
		var known names
		if len(state.GetAssignments()) > 0 {
			known = s.names(ctx)
		}
		return &listing{
			answer: state, head: "policy " + state.GetPolicy() + options(state.GetOptions()),
			tables: []section{{table: cpuTable(state, known, s.wide())}},
		}, nil
	})
}

// cpuTable has the pools, and below each its assignments by CPU.
func cpuTable(state *cpuv1.GetStateResponse, known names, wide bool) *table.Table {
	t := table.New("POOL", "CPUS", "COUNT", "OWNER").Wide(wide, "NUMA", "UID").Key("POOL", "CPUS", "OWNER")
	claims := slices.Clone(state.GetAssignments())
	slices.SortStableFunc(claims, func(a, b *typesv1.Claim) int {
		first, _ := set(a.GetCpu().GetCpus()).Min()
		second, _ := set(b.GetCpu().GetCpus()).Min()
		return cmp.Compare(first, second)
	})
	row := func(pool string, a *typesv1.Claim) {
		cpus := a.GetCpu().GetCpus()
		t.Row(pool, cpus.GetList(), strconv.Itoa(set(cpus).Len()), known.owner(claimOwner(a)), hintText(a.GetAffinity()), a.GetPodUid())
	}
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
		for _, a := range claims {
			if convert.Word(a.GetCpu().GetSharing()) == pool.name {
				row(pool.name, a)
			}
		}
	}
	for _, a := range claims {
		if name := convert.Word(a.GetCpu().GetSharing()); name != "shared" && name != "exclusive" {
			row(name, a)
		}
	}
	return t
}

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
	return c.lister(about{
		use:   "numa",
		short: "NUMA nodes: CPUs, memory, huge pages",
		long: `List the NUMA nodes with their memory and huge pages, their shared CPUs and their assigned CPUs. FREE is the memory that
pods can still get, if the memory manager allocates memory by node.`,
		example: `  berthctl get numa -o wide`,
	}, true, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		machine, err := s.Node().GetMachine(ctx, &nodev1.GetMachineRequest{})
		if err != nil {
			return nil, err
		}
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{At: s.past})
		if err != nil {
			return nil, err
		}
		memory, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{At: s.past})
		if err != nil {
			return nil, err
		}
		shared, taken := set(state.GetShared()), set(state.GetExclusive())
		t := table.New("NODE", "CPUS", "SHARED", "TAKEN", "MEMORY", "FREE", "HUGEPAGES").Wide(s.wide(), "DISTANCES").Key("NODE").Amounts("MEMORY", "FREE")
		for _, n := range machine.GetNodes() {
			cpus := set(n.GetCpus())
			t.Row(strconv.Itoa(int(n.GetNumaNode())), n.GetCpus().GetList(), cpus.Intersect(shared).String(), cpus.Intersect(taken).String(),
				number(n.GetMemoryBytes()), freeMemory(memory, n.GetNumaNode()), hugePages(n), distances(n))
		}
		return &listing{answer: &nodev1.GetMachineResponse{Nodes: machine.GetNodes()}, tables: []section{{table: t}}}, nil
	})
}

// number spells a number of bytes for a column of amounts.
func number(n uint64) string { return strconv.FormatUint(n, 10) }

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
	return c.lister(about{
		use:   "devices [RESOURCE]",
		short: "Devices and their holders",
		example: `  berthctl get devices
  berthctl get devices example.com/gpu`,
		args: []string{"[RESOURCE]"},
	}, true, func(ctx context.Context, s *session, args []string) (*listing, error) {
		state, err := s.Device().GetState(ctx, &devicev1.GetStateRequest{At: s.past})
		if err != nil {
			return nil, err
		}
		if len(args) == 1 {
			name := withoutKind(args[0], "resources")
			state.Resources = slices.DeleteFunc(state.GetResources(), func(r *devicev1.Resource) bool { return r.GetName() != name })
			if len(state.GetResources()) == 0 {
				return nil, fmt.Errorf("no device plugin has registered %s", name)
			}
		}
		t := table.New("RESOURCE", "DEVICE", "HEALTH", "NUMA", "HOLDER").Wide(s.wide(), "PLUGIN", "SINCE", "UID").Key("RESOURCE", "DEVICE")
		known := s.names(ctx)
		for _, r := range state.GetResources() {
			for _, d := range r.GetDevices() {
				t.Row(r.GetName(), d.GetDevice().GetId(), health(d.GetDevice().GetHealth()), nodes(d.GetDevice().GetNumaNodes()),
					known.owners(d.GetHolders()), convert.Word(r.GetPluginState()), s.healthSince(d.GetDevice()), holderUIDs(d))
			}
		}
		return &listing{answer: state, tables: []section{{table: t}}, none: "there are no devices"}, nil
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
	return c.lister(about{
		use:     "resources",
		short:   "Device resources with their counts and plugins",
		long:    `List the resources of device plugins. A plugin is "connected", "stopped", or "expected" (it has not registered again since the start of berthd).`,
		example: `  berthctl get resources -o wide`,
	}, true, func(ctx context.Context, s *session, _ []string) (*listing, error) {
		list, err := s.Device().ListResources(ctx, &devicev1.ListResourcesRequest{})
		if err != nil {
			return nil, err
		}
		t := table.New("RESOURCE", "CAPACITY", "ALLOCATABLE", "IN-USE", "PLUGIN").Wide(s.wide(), "ENDPOINT", "PRE-START", "PREFERRED").Key("RESOURCE")
		for _, r := range list.GetResources() {
			t.Row(r.GetName(), fmt.Sprint(r.GetCapacity()), fmt.Sprint(r.GetAllocatable()), fmt.Sprint(r.GetInUse()), convert.Word(r.GetPluginState()),
				r.GetEndpoint(), yesNo(r.GetPreStartRequired()), yesNo(r.GetPreferredAllocationAvailable()))
		}
		return &listing{answer: list, tables: []section{{table: t}}, none: "no device plugin has registered"}, nil
	})
}
