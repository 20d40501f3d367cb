package pods

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/sentences"
	"github.com/berthd/berth/clients/berthctl/drawing"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/internal/command"
	"github.com/berthd/berth/clients/internal/table"
)

const planResizeLong = `Show what a resize would do, and change nothing: whether it is possible, whether the containers stay on their NUMA nodes
or move to others, and then each step, and the cost. --map draws the machine before and after it.

A container that moves first gets its new CPUs and memory nodes in addition to the old ones. Then its memory moves, and
then it releases the old ones. The next step begins when the one before it was carried out.`

const planResizeExample = `  berthctl plan resize default/web app --cpu 8
  berthctl plan resize default/web app --cpu 8 --max-disruption move-cpus
  berthctl plan resize -f pod.yaml --map`

func Plan(c *command.Ctl) *cobra.Command {
	return command.Group(command.About{
		Use:     "plan",
		Short:   "Show the steps of a change before it is made",
		Example: "  berthctl plan resize default/web app --cpu 8 --map",
	}, planResize(c), planDefrag(c))
}

const planDefragLong = `Show which pods 'berthctl defrag' would move so that a pod fits, with each step and the cost, and change nothing. --map draws the
machine before the moves and after them.

The exit code is 3 if the pod does not fit.`

const planDefragExample = `  berthctl plan defrag --for pod.yaml
  berthctl plan defrag --for pod.yaml --max-moves 2 --map`

func planDefrag(c *command.Ctl) *cobra.Command {
	var d defragging
	var draw drawing.Flags
	cmd := c.Verb(command.About{
		Use:   "defrag --for FILE [--max-moves N]",
		Short: "Show the steps of the moves of other pods after which a pod fits",
		Long:  planDefragLong, Example: planDefragExample,
	}, func(ctx context.Context, s *command.Session, _ []string) error {
		o, err := draw.Options(s.Ctl)
		if err != nil {
			return err
		}
		req, err := d.request(ctx, s.Ctl, "plan defrag")
		if err != nil {
			return err
		}
		req.DryRun = true
		return showPlannedDefrag(ctx, s, req, draw.Draw && !s.ForPrograms(), o)
	})
	d.flags(cmd)
	draw.Declare(cmd, "draw the machine before and after the moves")
	return cmd
}

func showPlannedDefrag(ctx context.Context, s *command.Session, req *admissionv1.DefragmentRequest, draw bool, o nodemap.Options) error {
	events, err := s.Admission().Defragment(ctx, req)
	if err != nil {
		return err
	}
	answer, err := events.Recv()
	if err != nil {
		return err
	}
	plan, meta := answer.GetPlan(), req.GetPod().GetMetadata()
	if err := s.Show(answer, func(w io.Writer) {
		showDefragPlan(w, meta.GetNamespace()+"/"+meta.GetName(), plan)
		for i, m := range plan.GetMoves() {
			if i > 0 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s/%s\n", m.GetNamespace(), m.GetName())
			showPlan(w, m.GetPlan())
		}
	}); err != nil {
		return err
	}
	if draw {
		state, err := drawing.MapState(ctx, s, s.Now())
		if err != nil {
			return err
		}
		after := state
		for _, m := range plan.GetMoves() {
			pod, err := s.ByUID(ctx, m.GetPodUid())
			if err != nil {
				return err
			}
			after = afterMove(after, pod, pod.GetContainers(), m.GetPlan())
		}
		if plan.GetAllocation() != nil {
			pod := plan.GetAllocation()
			drawing.Add(&after, pod.GetUid(), command.PodName(pod), command.AllClaims(pod))
		}
		if err := showMaps(s, state, after, plan.GetFits(), o); err != nil {
			return err
		}
	}
	if !plan.GetFits() {
		return command.Verdict(command.ExitRejected)
	}
	return nil
}

func planResize(c *command.Ctl) *cobra.Command {
	r := &resizing{}
	var draw drawing.Flags
	cmd := c.Verb(command.About{
		Use:   "resize (POD CONTAINER [--cpu AMOUNT] [--memory AMOUNT] | POD --set [CONTAINER:]LIST.RESOURCE=AMOUNT… | -f FILE)",
		Short: "Show the steps of a resize",
		Long:  planResizeLong, Example: planResizeExample,
		Args: []string{"[POD]", "[CONTAINER]"},
	}, func(ctx context.Context, s *command.Session, args []string) error {
		o, err := draw.Options(s.Ctl)
		if err != nil {
			return err
		}
		r.common.DryRun = true
		requests, titles, err := r.requests(ctx, s, args)
		if err != nil {
			return err
		}
		end := command.ExitDone
		for i, req := range requests {
			result, err := r.carryOut(ctx, s, req)
			if err != nil {
				return err
			}
			answer := result.answer
			pod, err := s.ByUID(ctx, req.GetPodUid())
			if err != nil {
				return err
			}
			if err := s.Show(answer, func(w io.Writer) {
				result.show(w, titles[i])
				if result.idle() {
					return
				}
				if len(result.changes)+len(result.kept) > 0 {
					fmt.Fprintln(w)
				}
				showSteps(s, w, answer)
			}); err != nil {
				return err
			}
			if draw.Draw && pod != nil && !s.ForPrograms() {
				if err := showMoved(ctx, s, pod, answer, o); err != nil {
					return err
				}
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != command.ExitDone {
			return command.Verdict(end)
		}
		return nil
	})
	r.flags(cmd)
	draw.Declare(cmd, "draw the machine before and after the resize")
	return cmd
}

// showSteps prints the steps and the cost of a resize.
func showSteps(s *command.Session, w io.Writer, answer *admissionv1.ResizeResponse) {
	plan := answer.GetPlan()
	switch {
	case answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED:
		return
	case plan == nil:
		fmt.Fprintf(w, "in place, in one step\n\n%v", allocations(s.Ctl, answer.GetAllocations()))
		return
	}
	showPlan(w, plan)
}

// showPlan prints the cost and the steps of a move.
func showPlan(w io.Writer, plan *typesv1.MovePlan) {
	fmt.Fprintf(w, "containers that move: %d, CPUs that get another owner: %d, memory that moves: at most %s\n\n",
		plan.GetContainerCount(), plan.GetCpuCount(), table.Bytes(plan.GetBytes()))
	t := table.New("STEP", "CONTAINER", "CPUS", "MEMORY NODES", "MOVES")
	for _, step := range plan.GetSteps() {
		name := step.GetContainerName()
		if name == "" {
			name = "(the pod as a whole)"
		}
		moves := "-"
		if step.GetKind() == typesv1.MoveStepKind_MOVE_STEP_KIND_MIGRATE {
			moves = "at most " + table.Bytes(step.GetBytes())
		}
		t.Row(strings.ReplaceAll(command.Word(step.GetKind(), "MOVE_STEP_KIND_"), "-", " "), name,
			fromTo(step.GetCpusBefore().GetList(), step.GetCpusAfter().GetList()),
			fromTo(sentences.Nodes(step.GetMemoryNodesBefore()), sentences.Nodes(step.GetMemoryNodesAfter())), moves)
	}
	fmt.Fprint(w, t)
}

// fromTo returns a change, or what stays.
func fromTo(from, to string) string {
	switch {
	case from == "" && to == "":
		return "-"
	case from == to:
		return from
	}
	return from + " to " + to
}

// showMoved draws the machine before and after a resize.
func showMoved(ctx context.Context, s *command.Session, pod *typesv1.PodAllocation, answer *admissionv1.ResizeResponse,
	o nodemap.Options) error {
	state, err := drawing.MapState(ctx, s, s.Now())
	if err != nil {
		return err
	}
	changes := answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	return showMaps(s, state, afterMove(state, pod, answer.GetAllocations(), answer.GetPlan()), changes, o)
}

// showMaps draws the machine before and, if something changes, after it.
func showMaps(s *command.Session, before, after nodemap.State, changes bool, o nodemap.Options) error {
	fmt.Fprint(s.Out, "\nthe machine before:\n\n")
	if err := drawing.ShowMap(s.Ctl, before, o); err != nil || !changes {
		return err
	}
	fmt.Fprint(s.Out, "\nthe machine after:\n\n")
	return drawing.ShowMap(s.Ctl, after, o)
}

// afterMove returns a state of the machine after a move, or a resize, of a pod, with what its containers have then.
func afterMove(state nodemap.State, pod *typesv1.PodAllocation, containers []*typesv1.ContainerAllocation,
	plan *typesv1.MovePlan) nodemap.State {
	planned := func(container string, claims []*typesv1.Claim) (out []*typesv1.Claim) {
		for _, c := range claims {
			for _, to := range plan.GetClaims() {
				if to.GetContainerName() == container && to.GetProvider() == c.GetProvider() && to.GetResource() == c.GetResource() {
					c = to
				}
			}
			out = append(out, c)
		}
		return out
	}
	claims := planned("", pod.GetClaims())
	for _, a := range containers {
		claims = append(claims, planned(a.GetContainerName(), a.GetClaims())...)
	}
	old, moved := drawing.MapPod(pod.GetUid(), command.PodName(pod), pod.GetClaims(), pod.GetContainers()),
		drawing.MapPod(pod.GetUid(), command.PodName(pod), claims, nil)
	moved.New = true
	out := state
	out.Pods = slices.Clone(state.Pods)
	for i := range out.Pods {
		if out.Pods[i].UID == moved.UID {
			out.Pods[i] = moved
		}
	}
	out.Shared = state.Shared.Union(old.CPUs).Minus(moved.CPUs).Minus(state.Reserved).Union(state.Shared.Intersect(state.Reserved))
	out.Memory = slices.Clone(state.Memory)
	for _, b := range old.Blocks {
		left := b.Bytes
		for i := range out.Memory {
			if m := &out.Memory[i]; m.Resource == b.Resource && b.Nodes.Contains(m.Node) {
				less := min(left, m.Held)
				m.Held, left = m.Held-less, left-less
			}
		}
	}
	for _, b := range moved.Blocks {
		drawing.Hold(out.Memory, b)
	}
	return out
}
