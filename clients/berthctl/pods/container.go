package pods

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	lifecyclev1 "github.com/berthd/berth/api/berth/lifecycle/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
)

const startLong = `Report that a container was created and is about to run. berthd binds the runtime's id to it, calls PreStartContainer of
its device plugins where they request it, and applies the container's CPUs.

With --pid berthd also moves the process into the container's cgroup. The process must be stopped before its first
instruction.`

func Container(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use:   "container",
		Short: "Report the start or end of a container",
	}, containerStart(c), containerStop(c))
}

func containerStart(c *command.Ctl) *cobra.Command {
	var (
		id  string
		pid int32
	)
	cmd := c.Verb(command.About{
		Use:   "start POD CONTAINER --id ID [--pid N]",
		Short: "Bind the id of a container and apply its CPUs, before it starts",
		Long:  startLong,
		Example: `  berthctl container start default/web app --id 4f5e --pid 1234
  berthctl container start default/web app --id 4f5e`,
		Args: []string{"POD", "CONTAINER"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		if id == "" {
			return command.Usagef("container start", "--id is missing")
		}
		pod, err := s.Find(ctx, args[0])
		if err != nil {
			return err
		}
		answer, err := s.Lifecycle().PreStartContainer(ctx, &lifecyclev1.PreStartContainerRequest{
			PodUid: pod.GetUid(), ContainerName: args[1], ContainerId: id, Pid: pid,
		})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) {
			fmt.Fprintf(w, "%s/%s is bound to %s", command.PodName(pod), args[1], id)
			if cpus := answer.GetCpusetCpus().GetList(); cpus != "" {
				fmt.Fprintf(w, ", runs on %s", sentences.CPUNoun(cpus))
			}
			if mems := sentences.Nodes(answer.GetCpusetMems()); mems != "" {
				fmt.Fprintf(w, " with memory of %s", sentences.NodeNoun(mems))
			}
			if path := answer.GetCgroupPath(); path != "" {
				fmt.Fprintf(w, ", in cgroup %s", path)
			}
			fmt.Fprintln(w)
		})
	})
	cmd.Flags().StringVar(&id, "id", "", "the runtime's id of the container")
	cmd.Flags().Int32Var(&pid, "pid", 0, "a process to move into the container's cgroup; 0 leaves that to the runtime")
	return cmd
}

func containerStop(c *command.Ctl) *cobra.Command {
	return c.Verb(command.About{
		Use:     "stop ID",
		Short:   "Release the id of a container, after it has ended",
		Example: `  berthctl container stop 4f5e`,
		Args:    []string{"ID"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		answer, err := s.Lifecycle().PostStopContainer(ctx, &lifecyclev1.PostStopContainerRequest{ContainerId: args[0]})
		if err != nil {
			return err
		}
		return s.Show(answer, func(w io.Writer) {
			if !answer.GetFound() {
				fmt.Fprintf(w, "container %s was not known\n", args[0])
				return
			}
			fmt.Fprintf(w, "container %s is forgotten\n", args[0])
		})
	})
}
