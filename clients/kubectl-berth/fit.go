package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	fitv1 "github.com/berthd/berth/api/berth/fit/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const fitLong = `Show on which nodes pods fit now, and where they would after other pods have moved. Nothing changes.

Each node decides about the pods in order, each together with the pods before it that fit. Only what berth decides about counts: no
taints, labels, affinity, volumes or ports, and no resources of the kubelet's own device plugins that berth does not know.

The exit code is 3 if a pod fits on no node now.`

// fit decides about pods on all nodes.
func (c *ctl) fit() *cobra.Command {
	var (
		pods     command.Manifest
		maxMoves uint32
	)
	cmd := &cobra.Command{
		Use: "fit -f FILE", Short: "Show on which nodes pods fit", Long: fitLong, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(pods.Files) == 0 {
				return errors.New("expected -f FILE, the pods")
			}
			c.Began, pods.GenerateUID = true, true
			return c.fitAll(cmd.Context(), &pods, maxMoves)
		},
	}
	pods.ReadFlags(cmd.Flags())
	cmd.Flags().Uint32Var(&maxMoves, "max-moves", 4, "the most other pods that move for a pod, up to 16; 0: none")
	return cmd
}

func (c *ctl) fitAll(ctx context.Context, files *command.Manifest, maxMoves uint32) error {
	pods, err := files.Load(ctx, c.Ctl)
	if err != nil {
		return err
	}
	nodes, err := c.nodes(ctx)
	if err != nil {
		return err
	}
	answers := make([]*fitv1.FitResponse, len(nodes))
	errs := c.EachNode(ctx, nodes, func(ctx context.Context, i int, s *command.Session) (err error) {
		answers[i], err = s.Fit().Fit(ctx, &fitv1.FitRequest{Pods: pods, MaxMoves: maxMoves})
		return err
	})
	if c.ForPrograms() {
		messages := make([]proto.Message, len(nodes))
		for i, a := range answers {
			messages[i] = a
		}
		err = c.ShowNodes(nodes, messages, errs)
	} else {
		err = c.Say(func(w io.Writer) { showFits(w, nodes, answers, pods) })
	}
	if err := cmp.Or(err, command.Unanswered(errs)); err != nil {
		return err
	}
	for i := range pods {
		if summary(nodes, answers, i).now == 0 {
			return command.Verdict(command.ExitRejected)
		}
	}
	return nil
}

// fits is what the nodes say about a pod.
type fits struct {
	now, asked int
	// after has a node on which the pod fits after the fewest moves.
	after string
	moves uint32
}

// summary is what the nodes say about the pod of a number. A node without an answer says nothing.
func summary(nodes []command.Node, answers []*fitv1.FitResponse, pod int) (out fits) {
	for i, a := range answers {
		if pod >= len(a.GetPods()) {
			continue
		}
		out.asked++
		switch p := a.GetPods()[pod]; p.GetFit() {
		case fitv1.FitTime_FIT_TIME_NOW:
			out.now++
		case fitv1.FitTime_FIT_TIME_AFTER_DEFRAGMENTATION:
			if out.after == "" || p.GetMoves() < out.moves {
				out.after, out.moves = nodes[i].Name, p.GetMoves()
			}
		}
	}
	return out
}

func (s fits) String() string {
	text := fmt.Sprintf("fits now on %d of %s", s.now, table.Count(s.asked, "node"))
	if s.after != "" {
		text += fmt.Sprintf("; on %s after %s", s.after, table.Count(int(s.moves), "move"))
	}
	return text
}

// showFits prints a row for each pod and node, and a line for each pod.
func showFits(w io.Writer, nodes []command.Node, answers []*fitv1.FitResponse, pods []*typesv1.Pod) {
	t := table.New("POD", "NODE", "FITS", "NUMA", "MOVES", "REASON", "MESSAGE")
	var lines []string
	for at, pod := range pods {
		name := pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
		for i, a := range answers {
			if at >= len(a.GetPods()) {
				continue
			}
			p, moves := a.GetPods()[at], ""
			if n := p.GetMoves(); n > 0 {
				moves = strconv.Itoa(int(n))
			}
			t.Row(name, nodes[i].Name, convert.Word(p.GetFit()), sentences.Nodes(p.GetNumaNodes()), moves, p.GetReason(), p.GetMessage())
		}
		lines = append(lines, name+" "+summary(nodes, answers, at).String())
	}
	fmt.Fprintln(w, t)
	for _, line := range lines {
		fmt.Fprintln(w, line)
	}
}
