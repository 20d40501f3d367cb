package admission

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// attempt is a plan that may be dropped.
type attempt struct {
	*candidate
	draft *ledger.Draft
}

// try starts an attempt on what is planned.
func (c *candidate) try(draft *ledger.Draft) attempt {
	one := *c
	one.trace = &ledger.Trace{}
	return attempt{&one, ledger.NewDraft(draft.View())}
}

// adopt takes the claims and the steps of an attempt.
func (c *candidate) adopt(draft *ledger.Draft, a attempt) {
	record, _ := a.draft.View().Pod(c.uid())
	draft.PutPod(record)
	c.trace.Steps = append(c.trace.Steps, a.trace.Steps...)
}

// attempt plans and validates the pod without a change of the draft.
func (c *candidate) attempt(ctx context.Context, draft *ledger.Draft, rounds []topology.Round) (attempt, error) {
	a := c.try(draft)
	err := a.planRounds(ctx, a.draft, rounds)
	if err == nil {
		whole := hint.Request{Pod: &c.record.Pod, Container: -1, Running: c.running}
		err = c.Bus.Validate(ctx, a.draft.View(), whole, &ledger.Trace{})
	}
	return a, err
}

// planWhole plans the containers that run for the pod's life before its init containers, unless that is worse than the pod's
// order: then it plans in that order.
func (c *candidate) planWhole(ctx context.Context, draft *ledger.Draft) error {
	pod := &c.record.Pod
	inOrder := c.Policy.InOrder().Rounds(pod, c.Features)
	whole, err := c.attempt(ctx, draft, c.Policy.Rounds(pod, c.Features))
	if err != nil && (hint.Interrupts(err) || ctx.Err() != nil) {
		return err
	}
	if err == nil && !holdsForInit(whole.draft.View(), pod) {
		c.adopt(draft, whole)
		return nil
	}
	trial, calls := hint.InTrial(ctx)
	ordered, orderErr := c.attempt(trial, draft, inOrder)
	if err != nil {
		if orderErr == nil {
			c.note("", inOrderBecause+"it does not fit with its app containers and sidecars first")
		}
		return c.planRounds(ctx, draft, inOrder)
	}
	better := func() string {
		if orderErr != nil {
			return ""
		}
		return worse(whole.draft.View(), ordered.draft.View(), pod)
	}
	why := better()
	if why != "" && calls.Incomplete {
		// A trial lacks answers of plugins and providers, so the plan with them decides.
		if ordered, orderErr = c.attempt(ctx, draft, inOrder); orderErr != nil && (hint.Interrupts(orderErr) || ctx.Err() != nil) {
			return orderErr
		}
		why = better()
	}
	if why != "" {
		c.note("", inOrderBecause+why)
		c.adopt(draft, ordered)
		return nil
	}
	c.adopt(draft, whole)
	c.noteLoans(draft.View())
	return nil
}

const inOrderBecause = "the pod is planned container by container, in its order: "

func (c *candidate) note(container, text string) {
	c.trace.Add(ledger.Step{Kind: ledger.StepNoted, Container: container, Text: text})
}

// holdsForInit reports whether an init container that ends has a claim.
func holdsForInit(view *ledger.View, pod *workload.Pod) bool {
	return slices.ContainsFunc(claimsOf(view, pod.UID), func(c ledger.Claim) bool {
		container := pod.Container(c.Owner.Container)
		return container != nil && container.Role.Feeds()
	})
}

// planBorrowing plans an init container on what the later containers of its pod have: on what a single one has if that is
// enough; else near one of them, if the policy admits it; else wherever there is room, the pod's own first. What is tried makes no
// remote call: only what is chosen does.
func (c *candidate) planBorrowing(ctx context.Context, draft *ledger.Draft, round topology.Round,
	affinity hint.Hint) error {
	for _, way := range c.ways(draft.View(), round) {
		trial, calls := hint.InTrial(ctx)
		tried := c.try(draft)
		if way(trial, tried, affinity) != nil {
			continue
		}
		if !calls.Incomplete {
			c.adopt(draft, tried)
			return nil
		}
		chosen := c.try(draft)
		err := way(ctx, chosen, affinity)
		if err == nil {
			c.adopt(draft, chosen)
			return nil
		}
		if hint.Interrupts(err) || ctx.Err() != nil {
			return err
		}
		break
	}
	_, err := c.planRound(ctx, draft, round, affinity)
	return err
}

// way plans an init container in one attempt.
type way func(ctx context.Context, a attempt, affinity hint.Hint) error

// ways are the preferred ways to plan the init container of a round, the best one first.
func (c *candidate) ways(view *ledger.View, round topology.Round) (below []way) {
	req, pod := round.Plan[0], &c.record.Pod
	record, _ := view.Pod(c.uid())
	own := &pod.Containers[req.Container]
	var near []way
	for _, o := range pod.Containers[req.Container+1:] {
		if o.Role.Feeds() || !slices.ContainsFunc(record.Claims, func(claim ledger.Claim) bool { return claim.Owner.Container == o.Name }) {
			continue
		}
		if fitsBelow(own, &o) && len(own.ExternalDevices) == 0 {
			below = append(below, c.below(round, o.Name, record.Affinity(o.Name)))
		}
		if round.Merge {
			near = append(near, func(ctx context.Context, a attempt, affinity hint.Hint) error {
				one := round
				one.Hints.Near = o.Name
				one.Plan = []hint.Request{one.Hints}
				_, err := a.planRound(ctx, a.draft, one, affinity)
				return err
			})
		}
	}
	return append(below, near...)
}

// below plans an init container on what one container has, where that is.
func (c *candidate) below(round topology.Round, name string, affinity *ledger.Affinity) way {
	under := hint.Hint{Any: true}
	if affinity != nil {
		under = *affinity
	}
	return func(ctx context.Context, a attempt, _ hint.Hint) error {
		req := round.Plan[0]
		req.Below = name
		if round.Merge {
			a.trace.Add(ledger.Step{Kind: ledger.StepMerged, Container: req.Owner().Container, Affinity: &under,
				Text: fmt.Sprintf("where container %s is, which starts later", name)})
		}
		return c.Bus.Plan(ctx, a.draft, req, under, a.trace)
	}
}

// fitsBelow reports whether a container requests at most what another one requests, of every resource.
func fitsBelow(c, o *workload.Container) bool {
	for name, n := range c.Requests {
		if n > o.Requests[name] {
			return false
		}
	}
	for name, n := range c.Limits {
		if n > o.Limits[name] {
			return false
		}
	}
	return true
}

// worse says in what a plan is worse than another one of the same pod; empty if in nothing.
func worse(plan, than *ledger.View, pod *workload.Pod) string {
	a, _ := plan.Pod(pod.UID)
	b, _ := than.Pod(pod.UID)
	for _, c := range pod.Walk() {
		if has, had := nodesOf(plan, a, c.Name).Len(), nodesOf(than, b, c.Name).Len(); c.Role == workload.App && has > had {
			return fmt.Sprintf("container %s would have %d NUMA nodes instead of %d", c.Name, has, had)
		}
	}
	if has, had := a.HeldCPUs().Len(), b.HeldCPUs().Len(); has > had {
		return fmt.Sprintf("the pod would hold %d CPUs instead of %d", has, had)
	}
	var counted []string
	for _, claim := range a.Claims {
		if slices.Contains(counted, claim.Resource) {
			continue
		}
		counted = append(counted, claim.Resource)
		has, had := amountOf(a, claim), amountOf(b, claim)
		if has > had {
			return fmt.Sprintf("the pod would hold more %s: %d instead of %d", claim.Resource, has, had)
		}
	}
	return ""
}

// nodesOf are the NUMA nodes of all that a container has.
func nodesOf(view *ledger.View, p *ledger.Pod, container string) (nodes numa.Mask) {
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Owner.Container == container {
			nodes = nodes.Union(c.NUMANodes(view.Machine()))
		}
	}
	return nodes
}

// amountOf is how much a pod has of the memory, or how many of the devices, of a claim's resource; what containers share counts once.
func amountOf(p *ledger.Pod, of ledger.Claim) uint64 {
	if of.Devices == nil {
		bytes := p.ClaimedMemory(of.Resource)
		return bytes.Total()
	}
	ids := map[string]bool{}
	for _, c := range p.Claims {
		if c.Devices != nil && c.Resource == of.Resource {
			for _, d := range c.Devices.Devices {
				ids[d.ID] = true
			}
		}
	}
	return uint64(len(ids))
}

// loans are the claims of a pod's containers, for notes about its init containers.
type loans struct {
	record *ledger.Pod
	// lasting are the claims of containers that run for the pod's life.
	lasting []lasting
	// kept is the memory that only init containers have, by resource and nodes.
	kept map[string]uint64
}

type lasting struct {
	*ledger.Claim
	container *workload.Container
}

// noteLoans notes on whose CPUs and devices each init container runs, and what is kept for it alone.
func (c *candidate) noteLoans(view *ledger.View) {
	record, _ := view.Pod(c.uid())
	l, names := loans{record: record, kept: map[string]uint64{}}, c.record.Pod.Names()
	early := make([][]*ledger.Claim, len(c.record.Pod.Containers))
	for i := range record.Claims {
		claim := &record.Claims[i]
		at := names.At(claim.Owner.Container)
		switch {
		case at < 0:
		case c.record.Pod.Containers[at].Role.Feeds():
			early[at] = append(early[at], claim)
		default:
			l.lasting = append(l.lasting, lasting{claim, &c.record.Pod.Containers[at]})
		}
	}
	for _, claims := range early {
		for _, claim := range claims {
			c.noteLoan(&l, claim)
		}
	}
}

// noteLoan is noteLoans for a claim of an init container.
func (c *candidate) noteLoan(l *loans, claim *ledger.Claim) {
	name := claim.Owner.Container
	shared := map[string]bool{}
	var cpus cpuset.Set
	for _, other := range l.lasting {
		if other.Resource != claim.Resource || other.Provider != claim.Provider {
			continue
		}
		switch {
		case claim.CPUs != nil && other.CPUs != nil && claim.CPUs.Set.Overlaps(other.CPUs.Set):
			both := claim.CPUs.Set.Intersect(other.CPUs.Set)
			cpus = cpus.Union(both)
			c.note(name, fmt.Sprintf("init container %s runs on CPUs %s of %s %s", name, both, other.container.Role, other.container.Name))
		case claim.Devices != nil && other.Devices != nil:
			for _, id := range other.Devices.IDs() {
				if slices.Contains(claim.Devices.IDs(), id) {
					shared[id] = true
					c.note(name, fmt.Sprintf("init container %s uses %s %q of %s %s", name, claim.Resource, id, other.container.Role,
						other.container.Name))
				}
			}
		}
	}
	switch {
	case claim.CPUs != nil:
		if kept := claim.CPUs.Set.Minus(cpus); !kept.IsEmpty() {
			c.note(name, fmt.Sprintf("CPUs %s are kept for init container %s", kept, name))
		}
	case claim.Devices != nil:
		for _, id := range claim.Devices.IDs() {
			if !shared[id] {
				c.note(name, fmt.Sprintf("%s %q is kept for init container %s", claim.Resource, id, name))
			}
		}
	case len(claim.Memory) > 0:
		for _, b := range claim.Memory {
			if left := l.keptOn(claim.Resource, b.Nodes); left > 0 {
				c.note(name, fmt.Sprintf("%s of %s on NUMA nodes %s is kept for init containers",
					workload.Resource(claim.Resource).Text(int64(left)), claim.Resource, b.Nodes))
			}
		}
	}
}

// keptOn is the memory of a resource on some nodes that only init containers have.
func (l *loans) keptOn(resource string, nodes numa.Mask) uint64 {
	key := resource + " " + nodes.String()
	if _, known := l.kept[key]; !known {
		left := l.record.ReusableMemory("", resource, nodes)
		l.kept[key] = left.Total()
	}
	return l.kept[key]
}
