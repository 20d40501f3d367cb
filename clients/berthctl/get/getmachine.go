package get

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	cpuv1 "github.com/berthd/berth/api/berth/cpu/v1"
	devicev1 "github.com/berthd/berth/api/berth/device/v1"
	memoryv1 "github.com/berthd/berth/api/berth/memory/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

func getCPUs(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "cpus",
		Short: "CPU pools and exclusive CPUs with their owners",
		Long: `List the pools of CPUs, and below each pool the containers that have CPUs of it, ordered by CPU. A CPU is in the pool
"shared", for containers without exclusive CPUs, or in the pool "exclusive". A reserved CPU is never exclusive. It is also shared, unless
the CPU policy has the option strict-cpu-reservation.`,
		Example: `  berthctl get cpus
  berthctl get cpus -o json | jq -r .shared.list`,
	}, true, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{At: s.Past})
		if err != nil {
			return nil, err
		}
		var known command.Names
		if len(state.GetAssignments()) > 0 {
			known = s.Names(ctx)
		}
		return &command.Listing{
			Answer: state, Head: "policy " + state.GetPolicy() + command.Options(state.GetOptions()),
			Tables: []command.Section{{Table: cpuTable(state, known, s.Wide())}},
		}, nil
	})
}

// cpuTable has the pools, and below each its assignments by CPU.
func cpuTable(state *cpuv1.GetStateResponse, known command.Names, wide bool) *table.Table {
	t := table.New("POOL", "CPUS", "COUNT", "OWNER").Wide(wide, "NUMA", "UID").Key("POOL", "CPUS", "OWNER")
	claims := slices.Clone(state.GetAssignments())
	slices.SortStableFunc(claims, func(a, b *typesv1.Claim) int {
		first, _ := command.Set(a.GetCpu().GetCpus()).Min()
		second, _ := command.Set(b.GetCpu().GetCpus()).Min()
		return cmp.Compare(first, second)
	})
	row := func(pool string, a *typesv1.Claim) {
		cpus := a.GetCpu().GetCpus()
		t.Row(pool, cpus.GetList(), strconv.Itoa(command.Set(cpus).Len()), known.Owner(claimOwner(a)), sentences.Hint(a.GetAffinity()),
			a.GetPodUid())
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
		t.Row(pool.name, pool.cpus.GetList(), strconv.Itoa(command.Set(pool.cpus).Len()))
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

func getNUMA(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "numa",
		Short: "NUMA nodes: CPUs, memory, huge pages",
		Long: `List the NUMA nodes with their memory and huge pages, their shared CPUs and their assigned CPUs. FREE is the memory that
pods can still get, if the memory manager allocates memory by node.`,
		Example: `  berthctl get numa -o wide`,
	}, true, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		machine, err := s.Node().GetMachine(ctx, &nodev1.GetMachineRequest{})
		if err != nil {
			return nil, err
		}
		state, err := s.CPU().GetState(ctx, &cpuv1.GetStateRequest{At: s.Past})
		if err != nil {
			return nil, err
		}
		memory, err := s.Memory().GetState(ctx, &memoryv1.GetStateRequest{At: s.Past})
		if err != nil {
			return nil, err
		}
		shared, taken := command.Set(state.GetShared()), command.Set(state.GetExclusive())
		t := table.New("NODE", "CPUS", "SHARED", "TAKEN", "MEMORY", "FREE",
			"HUGEPAGES").Wide(s.Wide(), "DISTANCES").Key("NODE")
		for _, n := range machine.GetNodes() {
			cpus := command.Set(n.GetCpus())
			t.Row(strconv.Itoa(int(n.GetNumaNode())), n.GetCpus().GetList(), cpus.Intersect(shared).String(),
				cpus.Intersect(taken).String(),
				table.Bytes(n.GetMemoryBytes()), freeMemory(memory, n.GetNumaNode()), command.HugePageCells(n), command.Distances(n))
		}
		return &command.Listing{Answer: &nodev1.GetMachineResponse{Nodes: machine.GetNodes()}, Tables: []command.Section{{Table: t}}}, nil
	})
}

func getDevices(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "devices [RESOURCE]",
		Short: "Devices and their holders",
		Example: `  berthctl get devices
  berthctl get devices example.com/gpu`,
		Args: []string{"[RESOURCE]"},
	}, true, func(ctx context.Context, s *command.Session, args []string) (*command.Listing, error) {
		state, err := s.Device().GetState(ctx, &devicev1.GetStateRequest{At: s.Past})
		if err != nil {
			return nil, err
		}
		if len(args) == 1 {
			name := command.WithoutKind(args[0], "resources")
			state.Resources = slices.DeleteFunc(state.GetResources(), func(r *devicev1.Resource) bool { return r.GetName() != name })
			if len(state.GetResources()) == 0 {
				return nil, fmt.Errorf("no device plugin has registered %s", name)
			}
		}
		t := table.New("RESOURCE", "DEVICE", "HEALTH", "NUMA", "HOLDER").Wide(s.Wide(), "PLUGIN", "SINCE", "UID").Key("RESOURCE", "DEVICE")
		known := s.Names(ctx)
		for _, r := range state.GetResources() {
			for _, d := range r.GetDevices() {
				t.Row(r.GetName(), d.GetDevice().GetId(), command.Health(d.GetDevice().GetHealth()),
					sentences.Nodes(d.GetDevice().GetNumaNodes()),
					known.Owners(d.GetHolders()), convert.Word(r.GetPluginState()), s.HealthSince(d.GetDevice()), holderUIDs(d))
			}
		}
		return &command.Listing{Answer: state, Tables: []command.Section{{Table: t}}, None: "there are no devices"}, nil
	})
}

// holderUIDs returns the uids of the pods that hold a device.
func holderUIDs(d *devicev1.DeviceState) string {
	var uids []string
	for _, h := range d.GetHolders() {
		if !slices.Contains(uids, h.GetPodUid()) {
			uids = append(uids, h.GetPodUid())
		}
	}
	return command.Joined(uids)
}

func getResources(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:     "resources",
		Short:   "Device resources with their counts and plugins",
		Long:    `List the resources of device plugins. A plugin is "connected", "stopped", or "expected" (it has not registered again since the start of berthd).`,
		Example: `  berthctl get resources -o wide`,
	}, true, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		list, err := s.Device().ListResources(ctx, &devicev1.ListResourcesRequest{})
		if err != nil {
			return nil, err
		}
		t := table.New("RESOURCE", "CAPACITY", "ALLOCATABLE", "IN-USE", "PLUGIN").Wide(s.Wide(), "ENDPOINT", "PRE-START",
			"PREFERRED").Key("RESOURCE")
		for _, r := range list.GetResources() {
			t.Row(r.GetName(), fmt.Sprint(r.GetCapacity()), fmt.Sprint(r.GetAllocatable()), fmt.Sprint(r.GetInUse()),
				convert.Word(r.GetPluginState()),
				r.GetEndpoint(), command.YesNo(r.GetPreStartRequired()), command.YesNo(r.GetPreferredAllocationAvailable()))
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}}, None: "no device plugin has registered"}, nil
	})
}
