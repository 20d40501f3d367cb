package transition

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// Change is a change of the claims of a pod. From are the claims before the first step, and To the claims
// after the last one, in the same order: with the same owner, provider and resource, and the same kind of
// payload, CPUs or memory.
type Change struct {
	Pod      string
	From, To []ledger.Claim
}

// To returns the change of a pod of a view to some claims. Claims that the pod does not have are of class
// Invalid.
func To(view *ledger.View, uid string, claims []ledger.Claim) (Change, error) {
	c := Change{Pod: uid, To: claims}
	pod, ok := view.Pod(uid)
	if !ok {
		return Change{}, view.NotAdmitted(uid)
	}
	for i := range claims {
		at := find(pod, &claims[i])
		if at < 0 || claims[i].Owner.Pod != uid {
			return Change{}, errdefs.Invalidf("pod %s has no claim of %s on %s to change", uid, claims[i].Owner, claims[i].Resource)
		}
		c.From = append(c.From, pod.Claims[at])
	}
	return c, nil
}

// Kind is the kind of a step.
type Kind string

const (
	// Widen: the owner also gets its future resources, or a part of them.
	Widen Kind = "widen"
	// Migrate: the pages of the container move to the NUMA nodes that it will have. Its claims stay.
	Migrate Kind = "migrate"
	// HandOver: the owner releases CPUs for which another one waits.
	HandOver Kind = "hand over"
	// Narrow: the owner releases everything except its future resources.
	Narrow Kind = "narrow"
)

// Step is one step of a plan. Each step is one commit of the ledger, except Migrate, which changes no
// claims.
type Step struct {
	Kind  Kind
	Owner ledger.Owner
	// Before and After are the claims of the owner that change, in the same order.
	Before, After []ledger.Claim
	// To are the NUMA nodes that a Migrate leaves to the owner, and Bytes the most that it moves.
	To    numa.Mask
	Bytes uint64
}

// Apply adds the claims after the step to a draft.
func (s *Step) Apply(d *ledger.Draft) {
	if s.Kind != Migrate {
		d.AddClaims(s.Owner.Pod, s.After...)
	}
}

// String describes the step.
func (s *Step) String() string {
	if s.Kind == Migrate {
		return fmt.Sprintf("migrate %s: at most %d bytes to NUMA nodes %s", s.Owner, s.Bytes, s.To)
	}
	text := fmt.Sprintf("%s %s:", s.Kind, s.Owner)
	if from, to := cpusOf(s.Before), cpusOf(s.After); from != to {
		text += fmt.Sprintf(" CPUs %s to %s", from, to)
	}
	if from, to := nodesOf(s.Before), nodesOf(s.After); from != to {
		text += fmt.Sprintf(" memory of NUMA nodes %s to %s", from, to)
	}
	return text
}

// Cost is the effect of a plan on running containers.
type Cost struct {
	// Containers whose CPUs or memory nodes change.
	Containers int
	// CPUs that get another owner, or leave the shared pool.
	CPUs int
	// Bytes is the most memory that moves between NUMA nodes.
	Bytes uint64
}

// Plan is a sequence of steps.
type Plan struct {
	Steps []Step
	Cost  Cost
	// Held are the claims of the changes with everything that they have at any step.
	Held []ledger.Claim
	// Changes are those that the plan carries out.
	Changes []Change
}

// New plans the steps from the claims of a view to some changes. The view stays as it is.
//
// If the view is a state on the way between the claims before and after the changes, the plan stays on this
// way, in either direction. So changes can be reversed after each step, and reversed again.
//
// Errors are of class NotFound for a pod that the view does not have, Invalid for a change that is no
// change of CPUs or memory that the pod has, and Refused with the reason ResizeDeferred if no order of
// steps keeps the invariants now.
func New(view *ledger.View, changes []Change) (*Plan, error) {
	p := &planner{view: view, capacity: map[string]*ledger.NodeBytes{}}
	for _, m := range view.Rules().Memory {
		c := p.capacity[m.Resource]
		if c == nil {
			c = &ledger.NodeBytes{}
			p.capacity[m.Resource] = c
		}
		c[m.Node] = m.Allocatable
	}
	plan := &Plan{Changes: changes}
	for _, c := range changes {
		if err := p.add(c, &plan.Cost); err != nil {
			return nil, err
		}
	}
	var err error
	plan.Steps, err = p.path()
	if moves := func(u *unit) bool { pod, _ := view.Pod(u.owner.Pod); return pod.Move != nil }; err != nil &&
		slices.ContainsFunc(p.units, moves) {
		// A CPU that it holds may be offline, and a NUMA node may have less memory than before.
		p.beyond = true
		if steps, err2 := p.path(); err2 == nil {
			plan.Steps, err = steps, nil
		}
	}
	plan.Held = p.held(plan.Steps)
	return plan, err
}

// add makes the units of a change, and adds its cost.
func (p *planner) add(c Change, cost *Cost) error {
	pod, ok := p.view.Pod(c.Pod)
	if !ok {
		return p.view.NotAdmitted(c.Pod)
	}
	units := map[ledger.Owner]*unit{}
	touched := map[string]bool{}
	if len(c.From) != len(c.To) {
		return errdefs.Invalidf("the change of pod %s has %d claims before and %d after it", c.Pod, len(c.From), len(c.To))
	}
	for i := range c.To {
		want := &c.To[i]
		at := find(pod, want)
		if at < 0 {
			continue // released since the change was made, as by an init container
		}
		have := &pod.Claims[at]
		if have.CPUs == nil && have.Memory == nil || (have.CPUs == nil) != (want.CPUs == nil) ||
			(have.Memory == nil) != (want.Memory == nil) {
			return errdefs.Invalidf("the claim of %s on %s cannot change while containers run: only CPUs and memory can", want.Owner,
				want.Resource)
		}
		if have.CPUs != nil && have.CPUs.Use != want.CPUs.Use {
			return errdefs.Invalidf("%s has CPUs for use %q, which cannot become %q", want.Owner, have.CPUs.Use, want.CPUs.Use)
		}
		if was := &c.From[i]; was.Owner != want.Owner || was.Resource != want.Resource || (was.CPUs == nil) != (want.CPUs == nil) {
			return errdefs.Invalidf("the change of %s on %s begins with a claim of %s on %s", want.Owner, want.Resource, was.Owner,
				was.Resource)
		}
		if same(have, want) && same(&c.From[i], want) {
			continue
		}
		u := units[want.Owner]
		if u == nil {
			u = &unit{owner: want.Owner, part: want.Owner.Container != "" && wholeMemory(pod)}
			units[want.Owner] = u
			p.units = append(p.units, u)
		}
		u.from, u.want = append(u.from, c.From[i]), append(u.want, *want)
		if !same(have, want) {
			cost.add(pod, u, &c.From[i], have, want, touched)
		}
	}
	cost.Containers += len(touched)
	return nil
}

// add adds the cost of one claim. Of a pod as a whole, all containers are touched.
func (c *Cost) add(pod *ledger.Pod, u *unit, from, have, want *ledger.Claim, touched map[string]bool) {
	if u.owner.Container != "" {
		touched[u.owner.Container] = true
	} else {
		for _, c := range pod.Pod.Containers {
			touched[c.Name] = true
		}
	}
	if have.CPUs.OfNode() {
		c.CPUs += want.CPUs.Set.Minus(have.CPUs.Set).Len()
	}
	if !u.part {
		c.Bytes += leaving([]ledger.Claim{*from}, []ledger.Claim{*have}, []ledger.Claim{*want})
	}
}
