package live

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Limits of a search for moves.
const (
	// MaxMoves is the most moves that a plan has.
	MaxMoves = 16
	// maxTries limits the decisions of one search.
	maxTries = 1000
)

// LeastMoveRate is the lowest limit of memory that moves, in bytes per second: other memory waits meanwhile.
const LeastMoveRate = 1 << 20

// DefragmentRequest requests room for a pod that is not admitted.
type DefragmentRequest struct {
	Pod   workload.Pod
	Owner string
	// MaxMoves is the most moves of other pods, from 1 to MaxMoves.
	MaxMoves int
	// Stay are the uids of pods that do not move.
	Stay []string
}

// Defragmentation is the moves of other pods after which a pod fits.
type Defragmentation struct {
	// UID of the pod.
	UID string
	// Verdict is the decision about the pod as things are. Of an admitted one, nothing has to move.
	admission.Verdict
	// Moves are in order. They are empty if no moves help, or if none were found; Why is the reason.
	Moves []Relocation
	Why   string
	// After has the pod, and the others after their moves; nil unless it fits.
	After *ledger.View
	// Limited means that the search has reached its limit.
	Limited bool
}

// Fits returns whether the pod fits, now or after the moves.
func (d *Defragmentation) Fits() bool { return d.After != nil }

// PlanDefragment searches moves of other pods after which a pod fits. Only running pods move that allow it
// (workload.Movable), each once and by itself, to what is free, and none to where the pod goes. It changes
// nothing, and calls no plugin. The search is bounded, and does not compare all plans: it finds one with few
// moves of little memory. Errors are those of Admit.
func (e *Engine) PlanDefragment(ctx context.Context, req DefragmentRequest) (Defragmentation, error) {
	b, err := e.BasisInFlight()
	if err != nil {
		return Defragmentation{}, fmt.Errorf("make room for pod %s: %w", req.Pod.UID, err)
	}
	return e.planDefragment(ctx, b, req, new(int))
}

// planDefragment is PlanDefragment on a view. tries counts the decisions of all searches that share a limit.
func (e *Engine) planDefragment(ctx context.Context, b admission.Basis, req DefragmentRequest, tries *int) (Defragmentation, error) {
	if req.MaxMoves < 1 || req.MaxMoves > MaxMoves {
		return Defragmentation{}, errdefs.Invalidf("max_moves is %d: expected 1 to %d", req.MaxMoves, MaxMoves)
	}
	s := &defragment{engine: e, request: req, Basis: b, tries: tries}
	var err error
	if s.verdict, err = s.decide(ctx, b.View); err != nil {
		if errors.Is(err, errTries) {
			return Defragmentation{Why: tooLong, Limited: true}, nil
		}
		return Defragmentation{}, err
	}
	out := Defragmentation{UID: req.Pod.UID, Verdict: s.verdict}
	if s.verdict.Outcome == admission.Admitted {
		out.After = s.verdict.View
		return out, nil
	}
	if why := b.View.Uncertain(); why != "" {
		out.Why = why
		return out, nil
	}
	if out.Moves, out.After, err = s.search(ctx); err != nil {
		return Defragmentation{}, err
	}
	if !out.Fits() {
		out.Why, out.Limited = s.why, s.limited
	}
	return out, nil
}

// defragment is a search.
type defragment struct {
	engine  *Engine
	request DefragmentRequest
	// Basis is that of the whole search: the other views are made of its view.
	admission.Basis
	// verdict is the decision about the pod on view.
	verdict admission.Verdict
	tries   *int
	// limited is whether the search has reached its limit.
	limited bool
	// why is the best reason so far why there is no plan.
	why string
}

const tooLong = "no moves were found before the search reached its limit"

var errTries = errdefs.Unavailablef("the search has reached its limit")

// decide decides about the pod on a view.
func (s *defragment) decide(ctx context.Context, view *ledger.View) (admission.Verdict, error) {
	if *s.tries++; *s.tries > maxTries {
		return admission.Verdict{}, errTries
	}
	if err := ctx.Err(); err != nil {
		return admission.Verdict{}, err
	}
	e := s.engine
	cfg := e.Config
	cfg.Tries = -1
	t := admission.NewTrial(cfg, view, s.Bus, s.Policy)
	t.On(view, e.Now())
	return t.Repeat(ctx, admission.Request{Pod: s.request.Pod, Owner: s.request.Owner, AdmissionID: "trial of " + s.request.Pod.UID})
}

// movable returns where to a pod may be moved. A kubelet moves no pod: a plan says which ones would have to be made again elsewhere, which
// some never are.
func (e *Engine) movable(p *workload.Pod) workload.Movable {
	if e.Kubelet && p.Annotations[workload.MovableAnnotation] == "" && !p.Returns() {
		return workload.MovableAnywhere
	}
	return p.Movable()
}

// candidateMove is a pod that may move, and what that costs.
type candidateMove struct {
	pod   *ledger.Pod
	nodes numa.Mask
	bytes uint64
	cpus  int
}

// candidates returns the pods that may move, the cheapest first.
func (s *defragment) candidates() (out []candidateMove) {
	for p := range s.View.Pods() {
		if s.engine.movable(&p.Pod) == workload.NeverMovable || p.Move != nil || slices.Contains(s.request.Stay, p.UID()) {
			continue
		}
		c := candidateMove{pod: p, nodes: nodesIn(s.View, p)}
		for i := range p.Claims {
			if cpus := p.Claims[i].CPUs; cpus != nil {
				c.cpus += cpus.Set.Len()
			}
			c.bytes += total(p.Claims[i].Memory)
		}
		if c.cpus > 0 || c.bytes > 0 {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b candidateMove) int {
		return cmp.Or(cmp.Compare(a.bytes, b.bytes), cmp.Compare(a.cpus, b.cpus), strings.Compare(a.pod.UID(), b.pod.UID()))
	})
	return out
}

// noCandidates returns why no pod may move.
func (s *defragment) noCandidates() string {
	why := "no pod with exclusive CPUs or pinned memory may be moved: annotation " + workload.MovableAnnotation + " allows it"
	if s.engine.Kubelet {
		why = "no other pod has CPUs or memory of its own, but for static pods and those of a DaemonSet, which come back on the same node"
	}
	for p := range s.View.Pods() {
		switch {
		case s.engine.movable(&p.Pod) == workload.NeverMovable:
		case p.Move != nil:
			return "pod " + p.Pod.String() + " is moving now, and no other one may be moved: try again when it has arrived"
		case slices.Contains(s.request.Stay, p.UID()):
			why = "each pod that may be moved has moved already"
		}
	}
	return why
}

// search tries sets of pods: for each NUMA node as few of its pods as must go for the pod to fit, and as few of
// all pods.
func (s *defragment) search(ctx context.Context) ([]Relocation, *ledger.View, error) {
	all := s.candidates()
	if len(all) == 0 {
		s.why = s.noCandidates()
		return nil, nil, nil
	}
	groups := [][]candidateMove{all}
	for id := range s.View.Machine().NodeMask().All() {
		groups = append(groups, slices.DeleteFunc(slices.Clone(all), func(c candidateMove) bool { return !c.nodes.Contains(id) }))
	}
	s.why = "it would not fit either without all that can move"
	var sets [][]candidateMove
	for _, group := range groups {
		fits, err := s.fitsWithout(ctx, group)
		if err != nil {
			return nil, nil, s.ended(err)
		}
		if !fits {
			continue
		}
		for _, cheapFirst := range []bool{false, true} {
			set, err := s.fewest(ctx, group, cheapFirst)
			if err != nil {
				return nil, nil, s.ended(err)
			}
			sets = append(sets, set)
		}
	}
	slices.SortStableFunc(sets, func(a, b []candidateMove) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(bytesOf(a), bytesOf(b)))
	})
	for _, set := range sets {
		if len(set) > s.request.MaxMoves {
			s.why = "more pods would have to move than max_moves allows"
			break
		}
		moves, after, err := s.order(ctx, set)
		if err != nil || after != nil {
			return moves, after, s.ended(err)
		}
	}
	return nil, nil, nil
}

// ended returns nil if a search has reached its limit, and notes it.
func (s *defragment) ended(err error) error {
	if !errors.Is(err, errTries) {
		return err
	}
	s.why, s.limited = tooLong, true
	return nil
}

func bytesOf(set []candidateMove) (sum uint64) {
	for _, c := range set {
		sum += c.bytes
	}
	return sum
}

// without returns the view without what some pods have that can move. Their requests and devices stay.
func (s *defragment) without(set []candidateMove) *ledger.View {
	d := ledger.NewDraft(s.View)
	for _, c := range set {
		bare := clone(c.pod)
		bare.Claims = slices.DeleteFunc(bare.Claims, func(c ledger.Claim) bool { return c.CPUs != nil || c.Memory != nil })
		d.PutPod(bare)
	}
	return d.View()
}

func (s *defragment) fitsWithout(ctx context.Context, set []candidateMove) (bool, error) {
	if len(set) == 0 {
		return false, nil
	}
	v, err := s.decide(ctx, s.without(set))
	return v.Outcome == admission.Admitted, err
}

// fewest removes pods from a set as long as the pod fits without the rest.
func (s *defragment) fewest(ctx context.Context, set []candidateMove, cheapFirst bool) ([]candidateMove, error) {
	out := slices.Clone(set)
	tried := slices.Clone(set)
	if !cheapFirst {
		slices.Reverse(tried)
	}
	for _, c := range tried {
		fewer := slices.DeleteFunc(slices.Clone(out), func(o candidateMove) bool { return o.pod == c.pod })
		fits, err := s.fitsWithout(ctx, fewer)
		if err != nil {
			return nil, err
		}
		if fits {
			out = fewer
		}
	}
	return out, nil
}

// order plans the moves of a set, one after the other.
func (s *defragment) order(ctx context.Context, set []candidateMove) ([]Relocation, *ledger.View, error) {
	room, err := s.decide(ctx, s.without(set))
	if err != nil || room.Outcome != admission.Admitted {
		return nil, nil, err
	}
	now, left := s.View, slices.Clone(set)
	var moves []Relocation
	for len(left) > 0 {
		moved := -1
		for i, c := range left {
			r, after, err := s.relocate(ctx, now, room.Pod, c)
			if err != nil {
				return nil, nil, err
			}
			if after != nil {
				moves, now, moved = append(moves, r), after, i
				break
			}
		}
		if moved < 0 {
			return nil, nil, nil
		}
		left = slices.Delete(left, moved, moved+1)
	}
	v, err := s.decide(ctx, now)
	if err != nil || v.Outcome != admission.Admitted {
		return nil, nil, err
	}
	return moves, v.View, nil
}

// relocate plans the move of one pod to what is free on a view, without the room for the pod that is to fit. The
// view is nil if that is not possible.
func (s *defragment) relocate(ctx context.Context, now *ledger.View, room *ledger.Pod, c candidateMove) (Relocation, *ledger.View, error) {
	if *s.tries++; *s.tries > maxTries {
		return Relocation{}, nil, errTries
	}
	e, uid := s.engine, c.pod.UID()
	// In the draft, the room may overlap with pods that have not moved yet: neither is free.
	d := ledger.NewDraft(now)
	d.PutPod(clone(room))
	stays := s.engine.movable(&c.pod.Pod) == workload.MovableWithinNodes
	m, err := e.anew(ctx, s.On(d.View()), c.pod, nil, stays, &ledger.Trace{})
	var p *planned
	if err == nil {
		p, err = e.steps(ctx, s.On(now), c.pod, m, nil, &ledger.Trace{})
	}
	if err == nil && e.Mover != nil && p.Cost.Bytes > 0 {
		err = e.Mover.CheckMove(ctx, now, uid, m)
	}
	if err != nil {
		if errdefs.ClassOf(err) != errdefs.Refused {
			return Relocation{}, nil, err
		}
		_, message := errdefs.Verdict(err)
		s.why = "pod " + c.pod.Pod.String() + " would have to move, and cannot: " + message
		return Relocation{}, nil, nil
	}
	after := ledger.NewDraft(now)
	moved := clone(c.pod)
	moved.Move = m
	after.PutPod(moved.AfterMove())
	return Relocation{UID: uid, Reason: "to make room for pod " + room.Pod.String(), Plan: p.Plan, move: m}, after.View(), nil
}
