package main

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/get"
	"github.com/berthd/berth/clients/berthctl/machine"
	"github.com/berthd/berth/clients/berthctl/simulate"
	"github.com/berthd/berth/clients/internal/command"
)

// The names of the program: for messages, and as its users type it.
const program, typed = "kubectl-berth", "kubectl berth"

// ctl is the program: berthctl's state, the cluster, and the nodes that a verb is about.
type ctl struct {
	*command.Ctl
	cluster
	// node is the one that a verb is about; empty for the only one with berth.
	node string
	// allNodes means that a list is about all.
	allNodes bool
}

// run runs kubectl-berth and returns its exit code.
func run(ctx context.Context, e command.Env, kubectl string, args []string) int {
	c := &ctl{Ctl: &command.Ctl{Env: e, Program: program, Format: command.FormatTable, Color: command.ColorAuto},
		cluster: cluster{kubectl: kubectl}}
	c.Dial = c.dial
	return c.Execute(ctx, c.root(), args)
}

const rootLong = `kubectl berth asks the berths of a cluster's nodes what berthctl asks one.

It runs kubectl, with its clusters and users, and berthctl in the pods of berth's DaemonSets. Its user needs the rights to list these pods
and to create pods/exec in their namespace. The second is the right to do all that berthd can do on the nodes.`

const rootExample = `  kubectl berth get pods --all-nodes
  kubectl berth explain default/web
  kubectl berth fit -f pod.yaml
  kubectl berth map node-1`

// defaultTimeout is how long a node may take: a list of many waits for the slowest one.
const defaultTimeout = 10 * time.Second

func (c *ctl) root() *cobra.Command {
	root := &cobra.Command{
		Use: program, Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: typed},
		Short: "Ask the berths of a cluster's nodes", Long: rootLong, Example: rootExample,
		SilenceErrors: true, SilenceUsage: true, Args: command.Subcommand, SuggestionsMinimumDistance: command.Typos,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(*cobra.Command, []string) error { return c.CheckColor() },
	}
	fs := root.PersistentFlags()
	fs.StringVar(&c.kubeconfig, "kubeconfig", "", "kubectl's flag: file with clusters and users")
	fs.StringVar(&c.context, "context", "", "kubectl's flag: context of that file")
	fs.StringSliceVar(&c.namespaces, "berth-namespace", []string{"berth-system", "berth-observe"},
		"namespace with the pods of berth; may be repeated")
	fs.DurationVar(&c.Timeout, "timeout", defaultTimeout, "how long to wait for a node; 0 means no limit")
	fs.VarP(&c.Format, "output", "o", "table, wide, name, json, yaml or jsonpath={EXPRESSION}, which selects from what json prints")
	command.Choices(root, "output", command.Formats()...)
	fs.StringVar(&c.Color, "color", command.ColorAuto, "auto, always or never; auto is a terminal without the variable NO_COLOR")
	command.Choices(root, "color", command.ColorNames()...)

	lists := c.lists(get.Get(c.Ctl))
	root.AddCommand(lists, c.ofPod(get.Explain(c.Ctl)), c.fit(), c.check())
	for _, verb := range []*cobra.Command{
		drawing.Map(c.Ctl), get.Top(c.Ctl), machine.Web(c.Ctl), simulate.Bundle(c.Ctl),
	} {
		root.AddCommand(c.ofNode(verb))
	}
	version.AddFlag(root)
	withoutExamples(root)
	manual.Add(root, "1", manual.Notes{
		Exit: []manual.Entry{
			{Name: "0", Text: "Done."},
			{Name: "1", Text: "An error, or a node did not answer."},
			{Name: "2", Text: "A wrong command line."},
			{Name: "3", Text: "Of fit: a pod fits on no node now. Of check: something is wrong."},
			{Name: "130", Text: "The command was interrupted before it was done."},
		},
	})
	return root
}

// dial connects to the berthd of the node that a verb is about.
func (c *ctl) dial(ctx context.Context, _ string) (*berth.Client, error) {
	at, err := c.place(ctx)
	if err != nil {
		return nil, err
	}
	return c.connect(ctx, at)
}

func (c *ctl) place(ctx context.Context) (place, error) {
	all, err := c.places(ctx)
	if err != nil {
		return place{}, err
	}
	return of(all, c.node)
}

// nodes finds all nodes with berth.
func (c *ctl) nodes(ctx context.Context) ([]command.Node, error) {
	all, err := c.places(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]command.Node, len(all))
	for i, at := range all {
		out[i] = command.Node{Name: at.node, Connect: func(ctx context.Context) (*berth.Client, error) { return c.connect(ctx, at) }}
	}
	return out, nil
}

// lists makes the verbs of get list the objects of one node, or of all.
func (c *ctl) lists(group *cobra.Command) *cobra.Command {
	fs := group.PersistentFlags()
	fs.BoolVar(&c.allNodes, "all-nodes", false, "list the objects of all nodes with berth, in one table")
	fs.StringVar(&c.node, "on", "", "node whose objects are listed (default the only one with berth)")
	group.PersistentPreRunE = func(*cobra.Command, []string) error {
		if c.allNodes && c.node != "" {
			return errors.New("--all-nodes contradicts --on: give one of both")
		}
		if c.allNodes {
			c.Nodes = c.nodes
		}
		return c.CheckColor()
	}
	return group
}

// ofNode makes a verb of berthctl that has no arguments one about a node.
func (c *ctl) ofNode(verb *cobra.Command) *cobra.Command {
	work, name := verb.RunE, verb.Name()
	verb.Use = name + " [NODE]" + verb.Use[len(name):]
	verb.Args, verb.ValidArgsFunction = cobra.MaximumNArgs(1), nil
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		c.Began = true
		if len(args) > 0 {
			c.node = args[0]
		}
		return work(cmd, nil)
	}
	return verb
}

// ofPod makes explain ask the node that the pod is on.
func (c *ctl) ofPod(verb *cobra.Command) *cobra.Command {
	work := verb.RunE
	verb.Use, verb.Args, verb.ValidArgsFunction = "explain POD", cobra.ExactArgs(1), nil
	verb.Short, verb.Long = "Explain why a pod was admitted or rejected",
		"Explain the last decision about a pod, as 'berthctl explain' does on the pod's node. Without --namespace it is that of kubectl's context."
	verb.RunE = func(cmd *cobra.Command, args []string) error {
		c.Began = true
		namespace, err := cmd.Flags().GetString("namespace")
		if err != nil {
			return err
		}
		node, pod, err := c.nodeOf(cmd.Context(), namespace, args[0])
		if err != nil {
			return err
		}
		c.node = node
		if err := cmd.Flags().Set("namespace", ""); err != nil {
			return err
		}
		return work(cmd, []string{pod})
	}
	return verb
}

// check looks for what is wrong on a node: in the ledger of a berthd that decides, or in the files of a kubelet that does.
func (c *ctl) check() *cobra.Command {
	return &cobra.Command{
		Use: "check [NODE]", Short: "Check a node", Args: cobra.MaximumNArgs(1),
		Long: `Run 'berthctl ledger check' in the pod of the node, and where berth observes a kubelet 'berthctl check --kubelet'. The exit code is 3 if
something is wrong.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Began = true
			if len(args) > 0 {
				c.node = args[0]
			}
			at, err := c.place(cmd.Context())
			if err != nil {
				return err
			}
			verb := []string{"ledger", "check"}
			if at.observes {
				verb = []string{"check", "--kubelet=/host"}
			}
			return c.remote(cmd.Context(), c.Env, at, append(verb, "--output="+c.Format.String())...)
		},
	}
}

// withoutExamples takes berthctl's examples from all verbs: their command lines are not this program's.
func withoutExamples(cmd *cobra.Command) {
	for _, verb := range cmd.Commands() {
		verb.Example = ""
		withoutExamples(verb)
	}
}
