package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"
	"k8s.io/apimachinery/pkg/api/resource"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const defragLong = `Move other pods so that a pod fits, one after the other, while they run. The pod itself is not admitted.

Only pods move that allow it with the annotation berthd.github.io/movable: "within-node" to other CPUs of their NUMA
nodes, "anywhere" also to other nodes. Without it, a pod never moves. Devices never move.

--dry-run shows the moves, and changes nothing. If the command is interrupted, the moving pod gets its earlier CPUs and
memory back. --timeout begins with the command; without it, the command ends with the last move.

The exit code is 3 if the pod does not fit.`

const defragExample = `  berthctl defrag --for pod.yaml --dry-run
  berthctl defrag --for pod.yaml --max-moves 2 --rate 512Mi`

func Defrag(c *command.Ctl) *cobra.Command {
	var d defragging
	var rate string
	var dryRun bool
	var cmd *cobra.Command
	cmd = c.Local(command.About{
		Use:   "defrag --for FILE [--max-moves N] [--rate BYTES] [--dry-run]",
		Short: "Move other pods so that a pod fits",
		Long:  defragLong, Example: defragExample,
	}, func(ctx context.Context, _ []string) error {
		req, err := d.request(ctx, c, "defrag")
		if err != nil {
			return err
		}
		req.DryRun = dryRun
		if rate != "" {
			q, err := resource.ParseQuantity(rate)
			if err != nil || q.Sign() <= 0 {
				return command.Usagef("defrag", "--rate: %q is no number of bytes in a second, such as 512Mi", rate)
			}
			req.BytesPerSecond = uint64(q.Value())
		}
		if !cmd.Flags().Changed("timeout") {
			c.Timeout = 0
		}
		return c.Connected(ctx, func(ctx context.Context, s *command.Session) error { return defrag(ctx, s, req) })
	})
	d.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&rate, "rate", "",
		"the most memory that moves in a second on average, such as 512Mi; empty is the limit of the configuration")
	f.BoolVar(&dryRun, "dry-run", false, "only show the moves")
	return cmd
}

// defragging is for which pod other pods would move.
type defragging struct {
	pods     command.Manifest
	maxMoves uint32
	owner    string
}

func (d *defragging) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&d.pods.Files, "for", nil, "file with the pod; '-' is the standard input")
	d.pods.ReadingFlags(f)
	f.Uint32Var(&d.maxMoves, "max-moves", 4, "the most pods that move, 1 to 16")
	f.StringVar(&d.owner, "owner", "", "agent for which the pod is tried; empty is the default one")
}

// request reads the pod.
func (d *defragging) request(ctx context.Context, c *command.Ctl, verb string) (*admissionv1.DefragmentRequest, error) {
	if len(d.pods.Files) == 0 {
		return nil, command.Usagef(verb, "--for is missing")
	}
	if d.maxMoves == 0 { // berthd takes 0 for the default
		return nil, command.Usagef(verb, "--max-moves 0: expected 1 to 16; --dry-run moves nothing")
	}
	d.pods.GenerateUID = true
	wanted, err := d.pods.Load(ctx, c)
	if err != nil {
		return nil, err
	}
	if len(wanted) != 1 {
		return nil, command.Usagef(verb, "--for: %s has %d pods, expected 1", d.pods.Title(), len(wanted))
	}
	return &admissionv1.DefragmentRequest{Pod: wanted[0], MaxMoves: d.maxMoves, Owner: d.owner}, nil
}

// defrag shows the events of a defragmentation.
func defrag(ctx context.Context, s *command.Session, req *admissionv1.DefragmentRequest) error {
	events, err := s.Admission().Defragment(ctx, req)
	if err != nil {
		return err
	}
	meta := req.GetPod().GetMetadata()
	names := map[string]string{}
	fits := false
	for {
		e, err := events.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if plan := e.GetPlan(); plan != nil {
			fits = plan.GetFits()
			for _, m := range plan.GetMoves() {
				names[m.GetPodUid()] = m.GetNamespace() + "/" + m.GetName()
			}
		}
		if r := e.GetResult(); r != nil {
			fits = r.GetFits()
		}
		if err := s.Show(e, func(w io.Writer) { showDefrag(w, meta.GetNamespace()+"/"+meta.GetName(), names, e) }); err != nil {
			return err
		}
	}
	if !fits {
		return command.Verdict(command.ExitRejected)
	}
	return nil
}

// showDefrag prints an event.
func showDefrag(w io.Writer, pod string, names map[string]string, e *admissionv1.DefragmentResponse) {
	switch {
	case e.GetPlan() != nil:
		showDefragPlan(w, pod, e.GetPlan())
	case e.GetProgress() != nil:
		if p := e.GetProgress(); p.GetAllBytes() > 0 {
			fmt.Fprintf(w, "%s: %s of %s are there\n", names[p.GetPodUid()], table.Bytes(p.GetArrivedBytes()), table.Bytes(p.GetAllBytes()))
		}
	case e.GetMoved() != nil:
		m := e.GetMoved()
		fmt.Fprintf(w, "%s has moved in %v%s\n", names[m.GetPodUid()], m.GetDuration().AsDuration(), cost(m))
		for _, b := range []struct {
			when  string
			bytes map[uint32]uint64
		}{{"before", m.GetBytesBefore()}, {"after", m.GetBytesAfter()}} {
			if text := byNode(b.bytes); text != "" {
				fmt.Fprintf(w, "  memory %s: %s\n", b.when, text)
			}
		}
	case e.GetResult() != nil:
		r := e.GetResult()
		if r.GetFits() {
			fmt.Fprintf(w, "%s fits now; pods that have moved: %d\n", pod, r.GetMoved())
		} else {
			fmt.Fprintf(w, "%s does not fit; pods that have moved: %d; %s\n", pod, r.GetMoved(), r.GetWhy())
		}
	}
}

func showDefragPlan(w io.Writer, pod string, plan *admissionv1.DefragmentPlan) {
	switch {
	case plan.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED:
		fmt.Fprintf(w, "%s fits without a move\n", pod)
		return
	case !plan.GetFits():
		fmt.Fprintf(w, "%s does not fit (%s: %s), and no moves were found: %s\n", pod, plan.GetReason(), plan.GetMessage(), plan.GetWhy())
		return
	}
	fmt.Fprintf(w, "%s fits after %s\n\n", pod, table.Count(len(plan.GetMoves()), "move"))
	t := table.New("POD", "CONTAINER", "CPUS", "MEMORY NODES", "MOVES")
	for _, m := range plan.GetMoves() {
		for _, row := range moveRows(m.GetPlan()) {
			t.Row(append([]string{m.GetNamespace() + "/" + m.GetName()}, row...)...)
		}
	}
	fmt.Fprintf(w, "%v\n", t)
}

// moveRows has a row for each container of a move: its name, CPUs, memory nodes, and the memory that moves.
func moveRows(plan *typesv1.MovePlan) (rows [][]string) {
	first, last, bytes := map[string]*typesv1.MoveStep{}, map[string]*typesv1.MoveStep{}, map[string]uint64{}
	var names []string
	for _, step := range plan.GetSteps() {
		name := step.GetContainerName()
		if first[name] == nil {
			first[name] = step
			names = append(names, name)
		}
		last[name] = step
		bytes[name] += step.GetBytes()
	}
	for _, name := range names {
		moves := "-"
		if bytes[name] > 0 {
			moves = "at most " + table.Bytes(bytes[name])
		}
		title := name
		if name == "" {
			title = "(the pod as a whole)"
		}
		rows = append(rows, []string{title, fromTo(first[name].GetCpusBefore().GetList(), last[name].GetCpusAfter().GetList()),
			fromTo(sentences.Nodes(first[name].GetMemoryNodesBefore()), sentences.Nodes(last[name].GetMemoryNodesAfter())), moves})
	}
	return rows
}

// cost returns what a move has cost a pod, as far as the kernel counts it.
func cost(m *admissionv1.PodMoved) (text string) {
	for _, c := range []struct {
		what string
		d    *durationpb.Duration
	}{{"throttled for", m.GetThrottled()}, {"waited for CPUs for", m.GetCpuPressure()}, {"waited for memory for", m.GetMemoryPressure()}} {
		if c.d != nil {
			text += fmt.Sprintf("; %s %v", c.what, c.d.AsDuration())
		}
	}
	return text
}

// byNode returns amounts of memory by NUMA node.
func byNode(bytes map[uint32]uint64) string {
	var out []string
	for _, id := range slices.Sorted(maps.Keys(bytes)) {
		out = append(out, fmt.Sprintf("node %d %s", id, table.Bytes(bytes[id])))
	}
	return strings.Join(out, ", ")
}
