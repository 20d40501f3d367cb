package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	admissionv1 "github.com/berthd/berth/api/berth/admission/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/berthctl/nodemap"
	"github.com/berthd/berth/clients/berthctl/table"
)

const planResizeLong = `Show what a resize would do, and change nothing: whether it is possible, whether the containers stay on their NUMA nodes
or move to others, and then each step, and the cost. --map draws the machine before and after it.

A container that moves first gets its new CPUs and memory nodes in addition to the old ones. Then its memory moves, and
then it releases the old ones. The next step begins when the one before it was carried out.`

const planResizeExample = `  berthctl plan resize default/web app --cpu 8
  berthctl plan resize default/web app --cpu 8 --max-disruption move-cpus
  berthctl plan resize -f pod.yaml --map`

func (c *ctl) plan() *cobra.Command {
	return group(about{
		use:     "plan",
		short:   "Show the steps of a change before it is made",
		example: "  berthctl plan resize default/web app --cpu 8 --map",
	}, c.planResize(), c.planDefrag())
}

const planDefragLong = `Show which pods 'berthctl defrag' would move so that a pod fits, with each step and the cost, and change nothing. --map draws the
machine before the moves and after them.

The exit code is 3 if the pod does not fit.`

const planDefragExample = `  berthctl plan defrag --for pod.yaml
  berthctl plan defrag --for pod.yaml --max-moves 2 --map`

func (c *ctl) planDefrag() *cobra.Command {
	var d defragging
	var draw mapFlags
	cmd := c.verb(about{
		use:   "defrag --for FILE [--max-moves N]",
		short: "Show the steps of the moves of other pods after which a pod fits",
		long:  planDefragLong, example: planDefragExample,
	}, func(ctx context.Context, s *session, _ []string) error {
		o, err := draw.options(s.ctl)
		if err != nil {
			return err
		}
		req, err := d.request(ctx, s.ctl, "plan defrag")
		if err != nil {
			return err
		}
		req.DryRun = true
		return s.planDefrag(ctx, req, draw.draw && !s.forPrograms(), o)
	})
	d.flags(cmd)
	draw.declare(cmd, "draw the machine before and after the moves")
	return cmd
}

func (s *session) planDefrag(ctx context.Context, req *admissionv1.DefragmentRequest, draw bool, o nodemap.Options) error {
	events, err := s.Admission().Defragment(ctx, req)
	if err != nil {
		return err
	}
	answer, err := events.Recv()
	if err != nil {
		return err
	}
	plan, meta := answer.GetPlan(), req.GetPod().GetMetadata()
	if err := s.show(answer, func(w io.Writer) {
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
		state, err := s.mapState(ctx, s.now())
		if err != nil {
			return err
		}
		after := state
		for _, m := range plan.GetMoves() {
			pod, err := s.byUID(ctx, m.GetPodUid())
			if err != nil {
				return err
			}
			after = afterMove(after, pod, pod.GetContainers(), m.GetPlan())
		}
		if err := s.showMaps(state, after, len(plan.GetMoves()) > 0, o); err != nil {
			return err
		}
	}
	if !plan.GetFits() {
		return verdict(exitRejected)
	}
	return nil
}

func (c *ctl) planResize() *cobra.Command {
	r := &resizing{}
	var draw mapFlags
	cmd := c.verb(about{
		use:   "resize (POD CONTAINER [--cpu AMOUNT] [--memory AMOUNT] | POD --set [CONTAINER:]LIST.RESOURCE=AMOUNT… | -f FILE)",
		short: "Show the steps of a resize",
		long:  planResizeLong, example: planResizeExample,
		args: []string{"[POD]", "[CONTAINER]"},
	}, func(ctx context.Context, s *session, args []string) error {
		o, err := draw.options(s.ctl)
		if err != nil {
			return err
		}
		r.common.DryRun = true
		requests, titles, err := r.requests(ctx, s, args)
		if err != nil {
			return err
		}
		end := exitDone
		for i, req := range requests {
			answer, err := s.Resize(ctx, req)
			if err != nil {
				return err
			}
			pod, err := s.byUID(ctx, req.GetPodUid())
			if err != nil {
				return err
			}
			if err := s.show(answer, func(w io.Writer) {
				fmt.Fprintf(w, "%s would be %s\n", titles[i], resizeText(answer))
				s.showSteps(w, pod, answer)
			}); err != nil {
				return err
			}
			if draw.draw && pod != nil && !s.forPrograms() {
				if err := s.showMoved(ctx, pod, answer, o); err != nil {
					return err
				}
			}
			end = worse(end, answer.GetVerdict())
		}
		if end != exitDone {
			return verdict(end)
		}
		return nil
	})
	r.flags(cmd)
	draw.declare(cmd, "draw the machine before and after the resize")
	return cmd
}

// showSteps prints the steps and the cost of a resize.
func (s *session) showSteps(w io.Writer, pod *typesv1.PodAllocation, answer *admissionv1.ResizeResponse) {
	plan := answer.GetPlan()
	switch {
	case answer.GetVerdict() != admissionv1.Verdict_VERDICT_ADMITTED:
		return
	case plan == nil:
		fmt.Fprintf(w, "in place, in one step\n\n%v", s.allocations(answer.GetAllocations()))
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
		t.Row(strings.ReplaceAll(word(step.GetKind(), "MOVE_STEP_KIND_"), "-", " "), name,
			fromTo(step.GetCpusBefore().GetList(), step.GetCpusAfter().GetList()),
			fromTo(nodeList(step.GetMemoryNodesBefore()), nodeList(step.GetMemoryNodesAfter())), moves)
	}
	fmt.Fprint(w, t)
}

func nodeList(m *typesv1.NUMANodeSet) string {
	if m == nil {
		return ""
	}
	return mask(m).String()
}

// fromTo spells a change, or what stays.
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
func (s *session) showMoved(ctx context.Context, pod *typesv1.PodAllocation, answer *admissionv1.ResizeResponse, o nodemap.Options) error {
	state, err := s.mapState(ctx, s.now())
	if err != nil {
		return err
	}
	changes := answer.GetVerdict() == admissionv1.Verdict_VERDICT_ADMITTED
	return s.showMaps(state, afterMove(state, pod, answer.GetAllocations(), answer.GetPlan()), changes, o)
}

// showMaps draws the machine before and, if something changes, after it.
func (s *session) showMaps(before, after nodemap.State, changes bool, o nodemap.Options) error {
	fmt.Fprint(s.out, "\nthe machine before:\n\n")
	if err := s.showMap(before, o); err != nil || !changes {
		return err
	}
	fmt.Fprint(s.out, "\nthe machine after:\n\n")
	return s.showMap(after, o)
}

// afterMove returns a state of the machine after a move, or a resize, of a pod, with what its containers have then.
func afterMove(state nodemap.State, pod *typesv1.PodAllocation, containers []*typesv1.ContainerAllocation, plan *typesv1.MovePlan) nodemap.State {
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
	old, moved := mapPod(pod.GetUid(), podName(pod), pod.GetClaims(), pod.GetContainers()), mapPod(pod.GetUid(), podName(pod), claims, nil)
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
		hold(out.Memory, b)
	}
	return out
}

// hold adds a block to what is held of the memory of its nodes.
func hold(memory []nodemap.Memory, b nodemap.Block) {
	left := b.Bytes
	for i := range memory {
		if m := &memory[i]; m.Resource == b.Resource && b.Nodes.Contains(m.Node) {
			add := min(left, m.Allocatable-min(m.Allocatable, m.Held))
			m.Held += add
			left -= add
		}
	}
}
