package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/manual"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/api/version"
	"github.com/berthd/berth/clients/berth"
)

// env is everything outside of the program that it uses.
type env struct {
	in       io.Reader
	out, err io.Writer
	// dial connects to berthd; an empty endpoint means the default.
	dial func(ctx context.Context, endpoint string) (*berth.Client, error)
	now  func() time.Time
	// getenv reads a variable of the environment.
	getenv func(string) string
}

// ctl is the program: the state that all verbs share.
type ctl struct {
	env
	endpoint string
	timeout  time.Duration
	format   format
	// color selects when the output has colors.
	color string
	// socket is another one than berthd's that is read.
	socket string
	// shared are the CPUs of containers without CPUs of their own, as the last answer has them.
	shared *typesv1.CPUSet
	// past is the state that a verb shows in place of the current one; nil for that.
	past *typesv1.Moment
	// lines is set by verbs that print a document on each line of JSON, as a watch does.
	lines     bool
	waitReady bool
	// began is set when a verb starts its work. A failure before that is an error of usage.
	began bool
}

// session is one run of a verb.
type session struct {
	*ctl
	*berth.Client
}

// run runs berthctl and returns its exit code.
func run(ctx context.Context, e env, args []string) int {
	c := &ctl{env: e, format: formatTable, color: colorAuto}
	root := c.root()
	root.SetArgs(splitKind(root, args))
	root.SetIn(e.in)
	root.SetOut(e.out)
	root.SetErr(e.err)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitDone
	}
	if !c.began {
		err = &usageError{err: flagError(err)}
		c.wanted(args)
	}
	if usage := (*usageError)(nil); errors.As(err, &usage) {
		usage.verb = cmd.CommandPath() // several commands may share flags
	}
	return c.fail(err)
}

const rootLong = `berthctl is the command line client of berthd. berthd gives pods their CPUs, memory and devices on this machine.

A pod is named by uid, by namespace/name, or by its name alone if no other pod has that name. Results go to standard
output, everything else to standard error. The exit code is 1 after an error, 2 after a wrong command line, 3 if a pod
was rejected and 4 if a pod was deferred.`

const rootExample = `  berthctl admit -f pod.yaml --dry-run --explain
  berthctl get pods
  berthctl explain default/web`

func (c *ctl) root() *cobra.Command {
	root := &cobra.Command{
		Use:                        "berthctl",
		Short:                      "Command line client of berthd",
		Long:                       rootLong,
		Example:                    rootExample,
		SilenceErrors:              true,
		SilenceUsage:               true,
		Args:                       subcommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SuggestionsMinimumDistance: typos,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if _, ok := cmd.Annotations[named]; !ok && c.format == formatName {
				return errors.New("-o name is for the verbs of 'berthctl get' that list objects")
			}
			if c.timeout < 0 {
				return fmt.Errorf("--timeout %v: expected 0 (no limit) or more", c.timeout)
			}
			return c.checkColor()
		},
	}
	// What only holds other commands is not shown as if it could be called alone.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))

	flags := root.PersistentFlags()
	flags.StringVar(&c.endpoint, "endpoint", "", "berthd's socket, a path or unix:///path (default: $"+berth.EndpointVariable+", else "+berth.DefaultEndpoint+")")
	flags.DurationVar(&c.timeout, "timeout", time.Minute, "how long to wait for berthd; 0 means no limit")
	flags.BoolVar(&c.waitReady, "wait-ready", false, "wait until berthd is ready, at most --timeout: for the moment after its start")
	flags.VarP(&c.format, "output", "o", "table, wide, name, json, yaml or jsonpath={EXPRESSION}, which selects from what json prints")
	choices(root, "output", formats()...)
	flags.StringVar(&c.color, "color", colorAuto, "auto, always or never; auto is a terminal without the variable NO_COLOR")
	choices(root, "color", colorNames()...)

	root.AddGroup(
		&cobra.Group{ID: groupPods, Title: "Pods:"},
		&cobra.Group{ID: groupShow, Title: "State and configuration:"},
	)
	for _, verb := range []*cobra.Command{
		c.admit(), c.resize(), c.plan(), c.defrag(), c.allocate(), c.container(), c.remove(), c.sync(),
	} {
		verb.GroupID = groupPods
		root.AddCommand(verb)
	}
	for _, verb := range []*cobra.Command{
		c.get(), c.describe(), c.watch(), c.top(), c.web(), c.explain(), c.hints(), c.topology(), c.machineMap(), c.history(), c.replay(), c.bundle(), c.simulate(), c.fit(), c.policy(), c.ledger(), c.podResources(), c.plugin(), c.providers(), c.forget(), c.reload(), c.hugePages(),
	} {
		verb.GroupID = groupShow
		root.AddCommand(verb)
	}
	root.AddCommand(c.version())
	version.AddFlag(root)
	markFlags(root)
	manual.Add(root, "1")
	return root
}

// typos is how many letters of a command may be wrong for it to be guessed.
const typos = 2

const (
	groupPods = "pods"
	groupShow = "show"
)

// about has a verb's usage and help texts.
type about struct {
	use, short, long, example string
	// args names the arguments; those in brackets are optional.
	args []string
}

// work is what a verb does.
type work func(ctx context.Context, s *session, args []string) error

// verb makes a command that talks to berthd.
func (c *ctl) verb(a about, w work) *cobra.Command {
	return c.local(a, func(ctx context.Context, args []string) error {
		return c.connected(ctx, func(ctx context.Context, s *session) error { return w(ctx, s, args) })
	})
}

// connected gives a session to what needs one, for as long as the timeout allows.
func (c *ctl) connected(ctx context.Context, f func(ctx context.Context, s *session) error) error {
	if c.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.timeout)
		defer cancel()
	}
	client, err := c.dial(ctx, c.endpoint)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if c.waitReady {
		if err := client.WaitReady(ctx); err != nil {
			return err
		}
	}
	if !c.forPrograms() {
		client.OnAnswer(func(m proto.Message) { flatten(m.ProtoReflect()) })
	}
	return f(ctx, &session{ctl: c, Client: client})
}

// local makes a command that needs no berthd.
func (c *ctl) local(a about, w func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: a.use, Short: a.short, Long: a.long, Example: a.example,
		Args:              arguments(a.args...),
		ValidArgsFunction: c.complete(a.args),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.began = true
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			return w(cmd.Context(), args)
		},
		DisableFlagsInUseLine: true,
	}
}

// group makes a command that only holds others.
func group(a about, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: a.use, Short: a.short, Long: a.long, Example: a.example,
		Args:                       subcommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return errMissing(cmd) },
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: typos,
	}
	cmd.AddCommand(verbs...)
	return cmd
}
