package live

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Loss lists what a pod has and the machine has not any more.
type Loss struct {
	UID string
	// CPUs that are offline, or not in the machine.
	CPUs cpuset.Set
	// Nodes are NUMA nodes of its memory that are not in the machine.
	Nodes numa.Mask
	// Short are NUMA nodes of its memory of which pods have more than the nodes have.
	Short numa.Mask
}

// String describes the loss in a sentence.
func (l Loss) String() string {
	var parts []string
	if !l.CPUs.IsEmpty() {
		parts = append(parts, fmt.Sprintf("CPUs %s are offline or gone", l.CPUs))
	}
	if !l.Nodes.IsEmpty() {
		parts = append(parts, fmt.Sprintf("NUMA nodes %s are gone", l.Nodes))
	}
	if !l.Short.IsEmpty() {
		parts = append(parts, fmt.Sprintf("NUMA nodes %s have less memory than pods have there", l.Short))
	}
	return strings.Join(parts, "; ")
}

// Losses returns the pods that have lost something, those with lost CPUs or NUMA nodes first. The others share
// a lack of memory, and need not all move: they are in the order in which a move helps most. Moves in
// progress count as ended.
func Losses(view *ledger.View) (out []Loss) {
	d := ledger.NewDraft(view)
	for p := range view.Pods() {
		if p.Move != nil {
			d.PutPod(p.AfterMove())
		}
	}
	view = d.View()
	machine := view.Machine()
	short := lacking(view)
	helps := map[string]uint64{}
	for p := range view.Pods() {
		l := Loss{UID: p.UID()}
		for i := range p.Claims {
			c := &p.Claims[i]
			if c.CPUs != nil {
				l.CPUs = l.CPUs.Union(c.CPUs.Set.Minus(machine.CPUs()))
			}
			l.Nodes = l.Nodes.Union(ledger.NodesOf(c.Memory).Minus(machine.NodeMask()))
			for id, bytes := range short[c.Resource] {
				if n := on(c.Memory, id); n > 0 {
					l.Short = l.Short.With(id)
					helps[l.UID] += min(n, bytes)
				}
			}
		}
		if l != (Loss{UID: l.UID}) {
			out = append(out, l)
		}
	}
	slices.SortStableFunc(out, func(a, b Loss) int {
		own := func(l Loss) int {
			if l.CPUs.IsEmpty() && l.Nodes.IsEmpty() {
				return 1
			}
			return 0
		}
		return cmp.Or(cmp.Compare(own(a), own(b)), cmp.Compare(helps[b.UID], helps[a.UID]), strings.Compare(a.UID, b.UID))
	})
	return out
}

// lacking returns by how many bytes pods have more of a resource than a NUMA node of the machine has.
func lacking(view *ledger.View) map[string]map[int]uint64 {
	out := map[string]map[int]uint64{}
	use := view.MemoryUse()
	for _, m := range view.Rules().Memory {
		has, _ := ledger.PresentMemory(view.Machine(), workload.Resource(m.Resource))
		if held := use.Held(m.Resource); view.Machine().NodeMask().Contains(m.Node) && held[m.Node] > has[m.Node] {
			if out[m.Resource] == nil {
				out[m.Resource] = map[int]uint64{}
			}
			out[m.Resource][m.Node] = held[m.Node] - has[m.Node]
		}
	}
	return out
}

// PlanReplacement plans a move of a pod to other CPUs or memory, for those that it has lost. Lost CPUs are replaced
// where the pod is, and it keeps the others, if that is possible. Else the containers that have lost something
// are allocated again, as by an admission. Devices stay, and CPUs and memory near them, too. It changes
// nothing, and calls no plugin. A refusal is of class Refused: nothing that is free serves the pod.
//
// The plan is for what the pod lacks now, which may differ from l. If it lacks nothing any more, the error is of
// class Conflict.
func (e *Engine) PlanReplacement(ctx context.Context, l Loss) (Relocation, error) {
	var committed *ledger.View
	b, err := e.Basis(func() *ledger.View {
		committed = e.Ledger.View()
		return e.InFlight()
	})
	if err != nil {
		return Relocation{}, fmt.Errorf("replace what pod %s has lost: %w", l.UID, err)
	}
	if !b.DecideOn(committed) {
		return Relocation{}, errdefs.Conflictf("replace what pod %s has lost: the machine has changed meanwhile", l.UID)
	}
	now, lacks := lossOf(committed, l.UID)
	if !lacks {
		return Relocation{}, errdefs.Conflictf("replace what pod %s has lost: it lacks nothing any more", l.UID)
	}
	return e.planReplacement(ctx, b, now)
}

// lossOf returns what a pod has lost; ok is false if it lacks nothing.
func lossOf(view *ledger.View, uid string) (l Loss, ok bool) {
	losses := Losses(view)
	if i := slices.IndexFunc(losses, func(l Loss) bool { return l.UID == uid }); i >= 0 {
		return losses[i], true
	}
	return Loss{}, false
}

// planReplacement is PlanReplacement on a view, for a loss of that view.
func (e *Engine) planReplacement(ctx context.Context, b admission.Basis, l Loss) (Relocation, error) {
	view := b.View
	fail := func(err error) (Relocation, error) {
		return Relocation{}, fmt.Errorf("replace what pod %s has lost: %w", l.UID, err)
	}
	pod, ok := view.Pod(l.UID)
	if !ok {
		return fail(view.NotAdmitted(l.UID))
	}
	if pod.Pod.ResourceClaim != nil {
		return fail(errdefs.Refuse(errdefs.Infeasible, "%s is a resource claim, which cannot move", &pod.Pod))
	}
	if err := moving(pod); err != nil {
		return fail(err)
	}
	m, err := e.substitute(ctx, b, pod, l)
	if err != nil {
		return fail(err)
	}
	p, err := e.steps(ctx, b, pod, m, nil, &ledger.Trace{})
	if err != nil {
		return fail(err)
	}
	if len(p.Steps) == 0 {
		return fail(errdefs.Refuse(errdefs.ResizeDeferred, "pod %s would get what it has", &pod.Pod))
	}
	if e.Mover != nil && p.Cost.Bytes > 0 {
		if err := e.Mover.CheckMove(ctx, view, l.UID, m); err != nil {
			return fail(err)
		}
	}
	return Relocation{UID: l.UID, Reason: l.String(), Plan: p.Plan, move: m}, nil
}

// substitute decides what a pod gets for what it has lost. A pod with an unacknowledged change, as after a crash before
// the first commit of a move, also gives back what that change has added.
func (e *Engine) substitute(ctx context.Context, b admission.Basis, pod *ledger.Pod, l Loss) (*ledger.Move, error) {
	if pod.Acknowledged == nil {
		return e.newClaims(ctx, b, pod, l)
	}
	was, record := acknowledged(b.View, pod)
	m := &ledger.Move{}
	if lost, lacks := lossOf(was, pod.UID()); lacks { // else only what the change has added is lost
		var err error
		if m, err = e.newClaims(ctx, b.On(was), record, lost); err != nil {
			return nil, err
		}
	}
	out := &ledger.Move{}
	for _, have := range pod.Claims {
		same := func(c ledger.Claim) bool {
			return c.Key() == have.Key() && (c.CPUs != nil || c.Memory != nil)
		}
		to := slices.IndexFunc(m.To, same)
		if to >= 0 {
			out.From, out.To = append(out.From, have), append(out.To, m.To[to])
		} else if to = slices.IndexFunc(record.Claims, same); to >= 0 {
			out.From, out.To = append(out.From, have), append(out.To, record.Claims[to])
		}
	}
	return out, nil
}

// newClaims decides which claims of a pod change.
func (e *Engine) newClaims(ctx context.Context, b admission.Basis, pod *ledger.Pod, l Loss) (*ledger.Move, error) {
	view := b.View
	if l.Nodes.IsEmpty() && l.Short.IsEmpty() {
		claims, err := b.Bus.Replace(ctx, view, pod, b.Policy.Widening(), &ledger.Trace{})
		if err == nil && len(claims) > 0 {
			m := &ledger.Move{To: claims}
			for _, c := range claims {
				have, _ := pod.Claim(c.Owner.Container, c.Resource)
				m.From = append(m.From, have)
			}
			after := clone(pod)
			after.Move = m
			if err = nearDevices(view, pod, after.AfterMove()); err == nil {
				return m, nil
			}
		}
		if err != nil && errdefs.ClassOf(err) != errdefs.Refused {
			return nil, err
		}
	}
	machine := view.Machine()
	var moves []string
	for i := range pod.Claims {
		c := &pod.Claims[i]
		lost := c.CPUs != nil && !c.CPUs.Set.IsSubsetOf(machine.CPUs())
		if on := ledger.NodesOf(c.Memory); lost || on.Overlaps(l.Nodes.Union(l.Short)) {
			moves = append(moves, c.Owner.Container)
		}
	}
	if len(moves) == 0 {
		return nil, errdefs.Conflictf("the machine has changed meanwhile")
	}
	return e.anew(ctx, b, pod, moves, false, &ledger.Trace{})
}
