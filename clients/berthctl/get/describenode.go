package get

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	nodev1 "github.com/berthd/berth/api/berth/node/v1"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/output"
	"github.com/berthd/berth/clients/internal/table"
)

// nodeReport is what describe node prints for programs.
type nodeReport struct {
	Config json.RawMessage `json:"config"`
	Status json.RawMessage `json:"status"`
}

func describeNode(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "node",
		Short:   "Show how the node is set up, and what it lacks",
		Example: `  berthctl describe node`,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		config, err := s.Node().GetConfig(ctx, &nodev1.GetConfigRequest{})
		if err != nil {
			return err
		}
		status, err := s.Node().GetStatus(ctx, &nodev1.GetStatusRequest{})
		if err != nil {
			return err
		}
		if !s.ForPrograms() {
			return s.Say(func(w io.Writer) { showNode(w, config, status) })
		}
		var report nodeReport
		if report.Config, err = output.JSON(config); err != nil {
			return err
		}
		if report.Status, err = output.JSON(status); err != nil {
			return err
		}
		raw, err := json.Marshal(report)
		if err != nil {
			return fmt.Errorf("print the answer: %w", err)
		}
		return s.Print("NodeDescription", raw)
	})
}

func showNode(w io.Writer, c *nodev1.GetConfigResponse, status *nodev1.GetStatusResponse) {
	f := table.NewFields("")
	f.Add("Cgroups", fmt.Sprintf("version %d, driver %s", c.GetCgroupVersion(), c.GetCgroupDriver()))
	f.Add("Root", c.GetCgroupRoot())
	pods := "have no cgroups of their own (cgroupsPerQOS is false)"
	if c.GetCgroupsPerQos() {
		pods = "in " + c.GetPodCgroupRoot()
	}
	f.Add("Pods", pods)
	f.Add("Controllers", strings.Join(c.GetControllers(), ", "))
	var mounted []string
	for _, m := range c.GetMountedSubsystems() {
		text := fmt.Sprintf("%s at %s, version %d", m.GetName(), m.GetMountPoint(), m.GetVersion())
		if id := m.GetHierarchyId(); id != 0 {
			text += fmt.Sprintf(", hierarchy %d", id)
		}
		mounted = append(mounted, text)
	}
	f.Add("Mounted", mounted...)
	f.Add("Enforced", strings.Join(c.GetEnforceNodeAllocatable(), ", "))
	f.Add("System reserved", c.GetSystemReservedCgroup())
	f.Add("Kube reserved", c.GetKubeReservedCgroup())
	f.Add("Runtime", c.GetRuntimeEndpoint())
	f.Add("Node fit", command.YesNo(c.GetNodeFit()))
	var parts []string
	for _, p := range status.GetSystemContainers() {
		text := command.Word(p.GetPart(), "PART_")
		if p.GetPid() != 0 {
			text += fmt.Sprintf(", process %d", p.GetPid())
		}
		if p.GetCgroup() != "" {
			text += ", in " + p.GetCgroup()
		}
		if p.GetProblem() != "" {
			text += ": " + p.GetProblem()
		}
		parts = append(parts, text)
	}
	f.Add("Processes", parts...)
	f.Add("Scheduler", status.GetSchedulerExcess()...)
	f.Add("Lacks", status.GetSoftRequirements()...)
	f.Add("Kernel", status.GetKernelSettings()...)
	if status.GetResetExtendedResources() {
		f.Add("Devices", "none were known when berthd started: extended resources that are published and not in \"berthctl get resources\" are to be 0")
	}
	fmt.Fprint(w, f)
}
