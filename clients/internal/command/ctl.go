package command

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/trust"
	"github.com/berthd/berth/clients/berth"
)

// Env is everything outside of the program that it uses.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Dial connects to berthd; an empty endpoint means the default.
	Dial func(ctx context.Context, endpoint string) (*berth.Client, error)
	// Nodes finds the nodes that a list is about; nil for the one of Dial.
	Nodes func(ctx context.Context) ([]Node, error)
	// Observe reads a node whose kubelet decides.
	Observe func(context.Context, KubeletNode) (*Observed, error)
	// Check finds what is wrong on such a node: in two readings with a pause between them, or in one of now.
	Check func(ctx context.Context, n KubeletNode, now bool) (*Checked, error)
	Now   func() time.Time
	// Getenv reads a variable of the environment.
	Getenv func(string) string
}

// Ctl is the program: the state that all verbs share.
type Ctl struct {
	Env
	// Program is the name that messages begin with; empty for berthctl.
	Program string
	// Address is the value of --endpoint, empty for the default.
	Address string
	// Kubelet is the value of --kubelet: the root of the node that is read in place of a berthd; empty for none.
	Kubelet string
	// NodePods is the file with the pods of that node, and NodeConfig the one with its kubelet's answer to /configz.
	NodePods, NodeConfig string
	Timeout              time.Duration
	Format               Format
	// Color selects when the output has colors.
	Color string
	// Socket is another one than berthd's that is read.
	Socket string
	// Shared are the CPUs of containers without CPUs of their own, as the last answer has them.
	Shared *typesv1.CPUSet
	// Past is the state that a verb shows in place of the current one; nil for that.
	Past *typesv1.Moment
	// Lines is set by verbs that print a document on each line of JSON, as a watch does.
	Lines bool
	// noHeaders and sortBy are the flags of verbs that list objects. verb is how such a verb was called.
	noHeaders    bool
	sortBy, verb string
	// columnWidths are those of custom-columns, of all documents.
	columnWidths *[]int
	// AwaitReady is set to wait until berthd is ready.
	AwaitReady bool
	// Began is set when a verb starts its work. A failure before that is an error of usage.
	Began bool
}

// Session is one run of a verb.
type Session struct {
	*Ctl
	*berth.Client
	// following is that of a kubelet's node; nil for a berthd, whose answers are of now.
	following func(ctx context.Context, changed func(error)) error
}

// Follow keeps the answers about a kubelet's node up to date until ctx ends. changed is told why they are not, and nil when they are again.
func (s *Session) Follow(ctx context.Context, changed func(error)) error {
	if s.following == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	return s.following(ctx, changed)
}

// Followed calls f while the answers about a kubelet's node are kept up to date, and warns while they are not.
func (s *Session) Followed(ctx context.Context, f func(context.Context) error) error {
	ctx, end := context.WithCancelCause(ctx)
	followed := make(chan struct{})
	go func() {
		defer close(followed)
		end(s.Follow(ctx, func(problem error) {
			if problem == nil {
				s.Warn("the node is up to date again")
				return
			}
			s.Warn("the node is not up to date: %v", problem)
		}))
	}()
	err := f(ctx)
	why := context.Cause(ctx)
	end(context.Canceled)
	<-followed
	if why != nil && !errors.Is(why, context.Canceled) && !errors.Is(why, context.DeadlineExceeded) {
		return why
	}
	return err
}

// Typos limits the wrong letters of a command that is guessed.
const Typos = 2

// About has a verb's usage and help texts.
type About struct {
	Use, Short, Long, Example string
	// Args names the arguments; those in brackets are optional, and the last one may be there several times if it ends
	// with three points.
	Args []string
}

// work is what a verb does.
type work func(ctx context.Context, s *Session, args []string) error

// Verb makes a command that talks to berthd.
func (c *Ctl) Verb(a About, w work) *cobra.Command {
	return c.Local(a, func(ctx context.Context, args []string) error {
		return c.Connected(ctx, func(ctx context.Context, s *Session) error { return w(ctx, s, args) })
	})
}

// Connected gives a session to what needs one, for as long as the timeout allows.
func (c *Ctl) Connected(ctx context.Context, f func(ctx context.Context, s *Session) error) error {
	ctx, cancel := c.limited(ctx)
	defer cancel()
	s, err := c.connect(ctx)
	if err != nil {
		return err
	}
	client := s.Client
	defer func() { _ = client.Close() }()
	if c.AwaitReady {
		if err := client.WaitReady(ctx); err != nil {
			return err
		}
	}
	if !c.ForPrograms() {
		client.OnAnswer(func(m proto.Message) { flatten(m.ProtoReflect()) })
	}
	return s.withVersions(ctx, f(ctx, s))
}

// Local makes a command that needs no berthd.
func (c *Ctl) Local(a About, w func(ctx context.Context, args []string) error) *cobra.Command {
	return &cobra.Command{
		Use: a.Use, Short: a.Short, Long: a.Long, Example: a.Example,
		Args:              arguments(a.Args...),
		ValidArgsFunction: c.Complete(a.Args),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Began = true
			if err := trust.CheckFlags(cmd.Flags()); err != nil {
				return err
			}
			return w(cmd.Context(), args)
		},
		DisableFlagsInUseLine: true,
	}
}

// Group makes a command that only holds others.
func Group(a About, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: a.Use, Short: a.Short, Long: a.Long, Example: a.Example,
		Args:                       Subcommand,
		RunE:                       func(cmd *cobra.Command, _ []string) error { return errMissing(cmd) },
		DisableFlagsInUseLine:      true,
		SuggestionsMinimumDistance: Typos,
	}
	cmd.AddCommand(verbs...)
	return cmd
}
