package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/check"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/berthctl/ledger"
	"github.com/berthd/berth/clients/berthctl/machine"
	"github.com/berthd/berth/clients/berthctl/pods"
	"github.com/berthd/berth/clients/berthctl/simulate"
	"github.com/berthd/berth/clients/internal/command"
)

// run runs berthctl and returns its exit code.
func run(ctx context.Context, e command.Env, args []string) int {
	c := &command.Ctl{Env: e, Format: command.FormatTable, Color: command.ColorAuto}
	return c.Execute(ctx, root(c), args)
}

const rootLong = `berthctl is the command line client of berthd. berthd gives pods their CPUs, memory and devices on this machine.

A pod is named by uid, by namespace/name, or by its name alone if no other pod has that name. Results go to standard
output, everything else to standard error. The exit code is 1 after an error, 2 after a wrong command line, 3 if a pod
was rejected, 4 if a pod was deferred and 130 after an interruption.`

const rootExample = `  berthctl admit -f pod.yaml --dry-run --explain
  berthctl get pods
  berthctl explain default/web`

func root(c *command.Ctl) *cobra.Command {
	root := &cobra.Command{
		Use:                        "berthctl",
		Short:                      "Command line client of berthd",
		Long:                       rootLong,
		Example:                    rootExample,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args:                       command.Subcommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SuggestionsMinimumDistance: command.Typos,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if _, ok := cmd.Annotations[command.Named]; !ok && c.Format == command.FormatName {
				return errors.New("-o name is for the verbs of 'berthctl get' that list objects")
			}
			for at := cmd; at != nil && c.Kubelet != ""; at = at.Parent() {
				if why, no := notOfKubelets[at.Name()]; no {
					return fmt.Errorf("--kubelet: %s", why)
				}
			}
			if c.Timeout < 0 {
				return fmt.Errorf("--timeout %v: expected 0 (no limit) or more", c.Timeout)
			}
			return c.CheckColor()
		},
	}
	usage := new(cobra.Command).UsageFunc()
	root.SetUsageFunc(func(cmd *cobra.Command) error {
		if cmd.HasAvailableSubCommands() { // what only holds other commands is not shown as if it could be called alone
			defer func(run func(*cobra.Command, []string) error) { cmd.RunE = run }(cmd.RunE)
			cmd.RunE = nil
		}
		return usage(cmd)
	})

	flags := root.PersistentFlags()
	flags.StringVar(&c.Address, "endpoint", "",
		"berthd's socket, a path or unix:///path (default: $"+berth.EndpointVariable+", else "+berth.DefaultEndpoint+")")
	flags.StringVar(&c.Kubelet, "kubelet", "",
		"read a node whose kubelet decides, in place of a berthd, and change nothing: the running node, or with =DIR the one whose files are below a directory")
	flags.Lookup("kubelet").NoOptDefVal = "/"
	flags.StringVar(&c.NodePods, "pods", "", "with --kubelet: file with the node's pods, as 'kubectl get pods -A -o json --field-selector spec.nodeName=NODE' prints them; - is standard input")
	flags.StringVar(&c.NodeConfig, "configz", "",
		"with --kubelet: file with the kubelet's configuration as 'kubectl get --raw /api/v1/nodes/NODE/proxy/configz' prints it; - is standard input")
	flags.DurationVar(&c.Timeout, "timeout", time.Minute, "how long to wait for berthd; 0 means no limit")
	flags.BoolVar(&c.AwaitReady, "wait-ready", false, "wait until berthd is ready, at most --timeout: for the moment after its start")
	flags.VarP(&c.Format, "output", "o", "table, wide, name, json, yaml or jsonpath={EXPRESSION}, which selects from what json prints")
	command.Choices(root, "output", command.Formats()...)
	flags.StringVar(&c.Color, "color", command.ColorAuto, "auto, always or never; auto is a terminal without the variable NO_COLOR")
	command.Choices(root, "color", command.ColorNames()...)

	root.AddGroup(
		&cobra.Group{ID: groupPods, Title: "Pods:"},
		&cobra.Group{ID: groupShow, Title: "State and configuration:"},
	)
	for _, verb := range []*cobra.Command{
		pods.Admit(c), pods.Resize(c), pods.Plan(c), pods.Defrag(c), pods.Allocate(c), pods.Container(c), pods.Remove(c), pods.Sync(c),
	} {
		verb.GroupID = groupPods
		root.AddCommand(verb)
	}
	for _, verb := range []*cobra.Command{
		get.Get(c), get.Describe(c), get.Watch(c), get.Top(c), machine.Web(c), get.Explain(c), get.Hints(c), machine.Topology(c),
		drawing.Map(c), get.History(c), simulate.Replay(c), simulate.Compare(c), simulate.Bundle(c), simulate.Simulate(c), simulate.Fit(c),
		machine.Policy(c), ledger.Ledger(c), get.PodResources(c), machine.Plugin(c), get.Providers(c), machine.Forget(c),
		machine.Reload(c), machine.HugePages(c), machine.Proxy(c), check.Check(c),
	} {
		verb.GroupID = groupShow
		root.AddCommand(verb)
	}
	root.AddCommand(versions(c))
	version.AddFlag(root)
	command.MarkFlags(root)
	manual.Add(root, "1", manualNotes)
	return root
}

// notOfKubelets are verbs that do not read a kubelet's node, and what to do instead.
var notOfKubelets = map[string]string{
	"replay": "a kubelet keeps no history that could be replayed",
	"ledger": "a kubelet's node has no ledger; berthctl get shows what is in the state files",
	"plugin": "plugin checks a device plugin, and no node",
}

const (
	groupPods = "pods"
	groupShow = "show"
)
