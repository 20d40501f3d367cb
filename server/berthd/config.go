package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/report"
	"github.com/berthd/berth/server/internal/app"
	"github.com/berthd/berth/server/internal/config"
	"github.com/berthd/berth/server/internal/system/real"
	"github.com/berthd/berth/server/observe"
)

// configCommand looks at the configuration and starts nothing.
func configCommand(sources *config.Sources) *cobra.Command {
	group := &cobra.Command{
		Use: "config", Short: "Print or check the configuration", Args: cobra.NoArgs,
		Example: "  berthd config dump --kubelet-config /var/lib/kubelet/config.yaml\n  berthd config validate --config berth.yaml",
		RunE:    func(*cobra.Command, []string) error { return usage(errors.New("expected one of dump, validate")) },
	}
	var reports []string
	check := &cobra.Command{
		Use: "validate", Short: "Check the configuration against this machine", Args: cobra.NoArgs,
		Long: `Run the checks of a start without its effects: the fields, the machine, the owners of directories, sockets and addresses
that are taken, cgroup controllers, swap, kernel settings, and the cgroup driver against that of the container runtime and
of systemd. With --beside=kubelet the kubelet's own managers must be off. With --machine only the fields and that machine are
checked. Notes list warnings of a start, settings without effect, and checks that could not be made. The exit code is 1 if berthd
would not start, unless --report is given.`,
		Example: "  berthd config validate --config berth.yaml\n  berthd config validate --kubelet-config kubelet.yaml --machine 2s4n32c2t",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return validate(cmd.Context(), cmd.OutOrStdout(), *sources, reports...)
		},
	}
	report.AddFlag(check.Flags(), &reports)
	group.AddCommand(
		&cobra.Command{
			Use: "dump", Short: "Print the configuration that berthd would run with", Args: cobra.NoArgs,
			Long:    "Print the configuration that berthd would run with, defaults included, as a file for --config.",
			Example: "  berthd config dump > berth.yaml\n  berthd config dump --kubelet-config /var/lib/kubelet/config.yaml --root-dir /srv/berth",
			RunE: func(cmd *cobra.Command, _ []string) error {
				return dump(cmd.OutOrStdout(), cmd.ErrOrStderr(), *sources)
			},
		},
		check,
	)
	return group
}

func dump(out, warnings io.Writer, sources config.Sources) error {
	c, notes, err := config.Load(sources)
	warn(warnings, notes)
	if err != nil {
		return err
	}
	text, err := c.Dump()
	if err != nil {
		return err
	}
	_, err = out.Write(text)
	return err
}

// warn prints the notes about a configuration.
func warn(out io.Writer, notes []string) {
	for _, n := range notes {
		fmt.Fprintln(out, "warning:", n)
	}
}

// validate checks the configuration. Without reports, a failure is the error, which has its exit code.
func validate(ctx context.Context, out io.Writer, sources config.Sources, reports ...string) error {
	notes, err := found(ctx, sources)
	var result report.Result
	for _, n := range notes {
		result.Note("%s", n)
	}
	if err != nil && len(reports) > 0 {
		result.Fail("%v", err)
	}
	if err := result.Finish(out, reports); err != nil {
		return err
	}
	if len(reports) == 0 && err != nil {
		return err
	}
	if err == nil {
		_, err = fmt.Fprintln(out, "the configuration is valid")
		return err
	}
	return nil
}

// found returns the notes about a configuration that berthd would start with, also with an error.
func found(ctx context.Context, sources config.Sources) ([]string, error) {
	c, notes, err := config.Load(sources)
	if err != nil {
		return notes, err
	}
	if c.Observe.Root != "" {
		n, err := observe.Open(ctx, observe.Options{Root: c.Observe.Root, Pods: []observe.Pod{}})
		if err != nil {
			return notes, err
		}
		for _, text := range n.Missing {
			notes = append(notes, "not read: "+text)
		}
		return notes, nil
	}
	more, err := app.Check(ctx, real.System(), c)
	if err != nil {
		return notes, err
	}
	return append(notes, more...), nil
}
