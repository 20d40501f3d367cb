package get

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	cgroupv1 "github.com/berthd/berth/api/berth/cgroup/v1"
	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

// shownDrifts is how many of the newest drifts a table ends with.
const shownDrifts = 10

func getCgroups(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "cgroups",
		Short: "Cgroups with their values, and values that another program has changed",
		Long: `List the cgroups below berthd's own root, and reserved ones, with their values. A dash means no limit. PENDING is the
number of control files that berthd would write now. Values that another program has changed are listed at the end.`,
		Example: `  berthctl get cgroups
  berthctl get cgroups -o json | jq -r '.drifts[] | .cgroup + "/" + .file'`,
	}, false, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		list, err := s.Cgroup().List(ctx, &cgroupv1.ListRequest{})
		if err != nil {
			return nil, err
		}
		t := table.New("CGROUP", "STATE", "WEIGHT", "CPU", "MEMORY", "PIDS", "CPUS", "PENDING").
			Wide(s.Wide(), "MEMS", "USES", "MANAGED", "PATH").Key("CGROUP")
		for _, g := range list.GetCgroups() {
			v := valuesOf(g)
			t.Row(g.GetName(), stateText(g.GetState()), weight(v), quotaText(v), command.LimitText(v.MemoryLimitBytes, command.BytesText),
				command.LimitText(v.PidsLimit, command.Plain), v.GetCpusetCpus().GetList(), count(len(g.GetPending())),
				sentences.Nodes(v.GetCpusetMems()), command.BytesText(g.GetMemoryUsageBytes()), command.YesNo(g.GetManaged()),
				g.GetLiteral())
		}
		f := table.New("WHEN", "CGROUP", "FILE", "FOUND", "WANTED")
		drifts := list.GetDrifts()
		for _, d := range drifts[max(len(drifts)-shownDrifts, 0):] {
			f.Row(ago(s.Ctl, d.GetFindTime()), d.GetCgroup(), d.GetFile(), d.GetFound(), d.GetWant())
		}
		return &command.Listing{Answer: list, Tables: []command.Section{{Table: t}, {Title: "changed by another program:", Table: f}}}, nil
	})
}

// ago returns how long ago something was.
func ago(c *command.Ctl, at *timestamppb.Timestamp) string {
	return table.Age(c.Now().Sub(at.AsTime())) + " ago"
}

// valuesOf returns the values of a cgroup; empty if it is absent.
func valuesOf(g *cgroupv1.Cgroup) *typesv1.LinuxResources {
	if v := g.GetResources(); v != nil {
		return v
	}
	return &typesv1.LinuxResources{}
}

// stateText returns the state of a cgroup.
func stateText(s cgroupv1.State) string {
	return command.Word(s, "STATE_")
}

// weight returns the weight of either version.
func weight(v *typesv1.LinuxResources) string {
	switch {
	case v.CpuShares != nil:
		return strconv.FormatUint(v.GetCpuShares(), 10)
	case v.CpuWeight != nil:
		return strconv.FormatUint(v.GetCpuWeight(), 10)
	}
	return ""
}

// quotaText returns a CPU quota in CPUs.
func quotaText(v *typesv1.LinuxResources) string {
	switch {
	case v.CpuQuotaMicroseconds == nil:
		return ""
	case v.GetCpuQuotaMicroseconds() < 0 || v.GetCpuPeriodMicroseconds() == 0:
		return "-"
	}
	return strconv.FormatFloat(float64(v.GetCpuQuotaMicroseconds())/float64(v.GetCpuPeriodMicroseconds()), 'f', -1, 64)
}

// count returns a number that is mostly none.
func count(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

func describeCgroup(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "cgroup NAME",
		Short:   "Show all about a cgroup",
		Long:    "Show what a cgroup holds, what berthd would write there now, and what another program has changed.",
		Example: `  berthctl describe cgroup /kubepods/burstable`,
		Args:    []string{"NAME"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		list, err := s.Cgroup().List(ctx, &cgroupv1.ListRequest{})
		if err != nil {
			return err
		}
		at := slices.IndexFunc(list.GetCgroups(), func(g *cgroupv1.Cgroup) bool {
			return args[0] == g.GetName() ||
				args[0] == g.GetLiteral()
		})
		if at < 0 {
			return fmt.Errorf("there is no cgroup %s below berthd's root: 'berthctl get cgroups' lists the existing ones", args[0])
		}
		g := list.GetCgroups()[at]
		list.Cgroups = list.GetCgroups()[at : at+1]
		list.Drifts = slices.DeleteFunc(list.GetDrifts(), func(d *cgroupv1.Drift) bool { return d.GetCgroup() != g.GetName() })
		return s.Show(list, func(w io.Writer) { fmt.Fprint(w, cgroupFields(s.Ctl, g, list.GetDrifts())) })
	})
}

// cgroupFields shows one cgroup.
func cgroupFields(c *command.Ctl, g *cgroupv1.Cgroup, drifts []*cgroupv1.Drift) *table.Fields {
	f, v := table.NewFields(""), valuesOf(g)
	f.Add("Cgroup", g.GetName())
	f.Add("Path", g.GetLiteral())
	state := stateText(g.GetState())
	if g.GetReason() != "" {
		state += ": " + g.GetReason()
	}
	f.Add("State", state)
	f.Add("Pod UID", g.GetPodUid())
	f.Add("Managed", command.YesNo(g.GetManaged()))
	f.Add("Weight", weight(v))
	f.Add("CPU", quotaText(v))
	f.Add("Memory", command.LimitText(v.MemoryLimitBytes, command.BytesText))
	f.Add("Memory and swap", command.LimitText(v.MemorySwapLimitBytes, command.BytesText))
	f.Add("Memory in use", command.BytesText(g.GetMemoryUsageBytes()))
	f.Add("Processes", command.LimitText(v.PidsLimit, command.Plain))
	f.Add("CPUs", v.GetCpusetCpus().GetList())
	f.Add("Memory nodes", sentences.Nodes(v.GetCpusetMems()))
	var pages []string
	for _, l := range v.GetHugepageLimits() {
		pages = append(pages, command.LimitText(l.LimitBytes, command.BytesText)+" of "+table.Bytes(l.GetPageSizeBytes()))
	}
	f.Add("Huge pages", pages...)
	f.Add("Other files", command.Pairs(v.GetUnified())...)
	var pending []string
	for _, p := range g.GetPending() {
		text := p.GetFile() + ": " + p.GetNewValue()
		if p.GetOldValue() != "" {
			text += ", now " + p.GetOldValue()
		}
		pending = append(pending, text)
	}
	f.Add("Pending", pending...)
	var changed []string
	for _, d := range drifts {
		changed = append(changed, fmt.Sprintf("%s %s: %s, wanted %s", ago(c, d.GetFindTime()), d.GetFile(), d.GetFound(), d.GetWant()))
	}
	f.Add("Changed", changed...)
	return f
}

func getNode(c *command.Ctl) *cobra.Command {
	return c.Lister(command.About{
		Use:   "node",
		Short: "The node: capacity, reserved, allocatable and requested",
		Long: `List the capacity, the reserved amount and the allocatable amount of every resource of the node, and the sum of the
requests of all admitted pods.`,
		Example: `  berthctl get node
  berthctl get node -o wide`,
	}, false, func(ctx context.Context, s *command.Session, _ []string) (*command.Listing, error) {
		capacity, err := s.Node().GetCapacity(ctx, &nodev1.GetCapacityRequest{})
		if err != nil {
			return nil, err
		}
		allocatable, err := s.Node().GetAllocatable(ctx, &nodev1.GetAllocatableRequest{})
		if err != nil {
			return nil, err
		}
		reserved, err := s.Node().GetReservation(ctx, &nodev1.GetReservationRequest{})
		if err != nil {
			return nil, err
		}
		t := table.New("RESOURCE", "CAPACITY", "RESERVED", "ALLOCATABLE", "REQUESTED").
			Wide(s.Wide(), "SYSTEM", "KUBE", "EVICTION", "LIMIT").Key("RESOURCE")
		for _, name := range slices.Sorted(maps.Keys(capacity.GetCapacity())) {
			text := func(amounts map[string]string) string { return command.Amount(name, amounts[name]) }
			t.Row(name, text(capacity.GetCapacity()), text(reserved.GetReservation()), text(allocatable.GetAllocatable()),
				text(allocatable.GetRequested()), text(reserved.GetSystem()), text(reserved.GetKube()), text(reserved.GetEviction()),
				text(allocatable.GetLimit()))
		}
		return &command.Listing{Answer: allocatable, Tables: []command.Section{{Table: t}}}, nil
	})
}
