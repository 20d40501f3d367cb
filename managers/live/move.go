package live

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/transition"
	"github.com/berthd/berth/managers/workload"
)

// planned is a move that was planned and not begun.
type planned struct {
	*transition.Plan
	move ledger.Move
	// begin are the claims after the first steps.
	begin []ledger.Claim
}

// planMove plans where the cpu and memory of containers go if they are allocated again, as by an
// admission, and the steps there. record is the pod with the amounts that it shall have, and with
// the claims that it has. before is the pod with the amounts that it has. moves are as for anew.
func (e *Engine) planMove(ctx context.Context, b admission.Basis, before, record *ledger.Pod, moves []string,
	trace *ledger.Trace) (*planned, error) {
	m, err := e.anew(ctx, b, record, moves, false, trace)
	if err != nil {
		return nil, err
	}
	return e.steps(ctx, b, record, m, &before.Pod, trace)
}

// here is the resource of made-up devices that are near to the NUMA nodes that a container has.
const here = "berthd.github.io/here"

// markers returns a made-up device for each NUMA node of a container. A container that needs all of them is
// preferably allocated on exactly these nodes. Those of a pod as a whole are with its first container.
func markers(view *ledger.View, record *ledger.Pod, container int) (out []workload.ExternalDevice) {
	name := record.Pod.Containers[container].Name
	own := &ledger.Pod{Claims: slices.DeleteFunc(slices.Clone(record.Claims), func(c ledger.Claim) bool {
		return c.Owner.Container != name && (container > 0 || c.Owner.Container != "")
	})}
	for id := range nodesIn(view, own).All() {
		out = append(out, workload.ExternalDevice{Resource: here, ID: strconv.Itoa(id), Nodes: numa.Of(id)})
	}
	return out
}

// anew plans where the cpu and memory of containers go if they are allocated again, as by an admission.
// Devices stay, so the new CPUs and memory are near the same devices. moves are the containers
// that must be allocated again; those that are planned together with them move, too, and init containers that
// run on what others hold. Without moves, all do. With stays, they stay on the NUMA nodes that they have.
func (e *Engine) anew(ctx context.Context, b admission.Basis, record *ledger.Pod, moves []string, stays bool,
	trace *ledger.Trace) (*ledger.Move, error) {
	view, uid := b.View, record.UID()
	for i := range record.Claims {
		if c := &record.Claims[i]; c.CPUs == nil && c.Memory == nil && c.Devices == nil {
			return nil, errdefs.Refuse(errdefs.Infeasible, "pod %s has %s of provider %s, which cannot move", &record.Pod, c.Resource,
				c.Provider)
		}
	}
	anew := map[string]bool{}
	bare := *record
	if stays {
		bare.Pod.Containers = slices.Clone(record.Pod.Containers)
		for i := range bare.Pod.Containers {
			bare.Pod.Containers[i].ExternalDevices = append(slices.Clone(bare.Pod.Containers[i].ExternalDevices),
				markers(view, record, i)...)
		}
	}
	roundsOf := func(policy *topology.Manager) (rounds []topology.Round) {
		for _, round := range policy.Rounds(&bare.Pod, e.Features) {
			names := containersOf(round.Plan)
			// An init container goes where those are on whose CPUs and memory it runs.
			asked := slices.ContainsFunc(names, func(name string) bool { return anew[name] || slices.Contains(moves, name) })
			if len(moves) > 0 && !round.Borrows && !asked {
				continue
			}
			rounds = append(rounds, round)
			for _, name := range names {
				anew[name] = true
			}
		}
		return rounds
	}
	rounds := roundsOf(b.Policy)
	movable := func(c ledger.Claim) bool { return (c.CPUs != nil || c.Memory != nil) && anew[c.Owner.Container] }
	for _, c := range record.Claims {
		// The policy was another one at the admission.
		if all := len(moves) == 0; !movable(c) && c.Devices == nil && (all || slices.Contains(moves, c.Owner.Container)) {
			return nil, errdefs.Refuse(errdefs.Infeasible, "%s has %s, which an admission would not allocate to it now", c.Owner,
				c.Content())
		}
	}
	bare.Claims = slices.DeleteFunc(slices.Clone(record.Claims), movable)
	planned, err := e.PlanRunning(ctx, b, &bare, rounds, trace)
	if errdefs.ClassOf(err) == errdefs.Refused && b.Policy.WholePod(&bare.Pod, e.Features) {
		// As an admission, which also plans in the pod's order if that serves it.
		planned, err = e.PlanRunning(ctx, b, &bare, roundsOf(b.Policy.InOrder()), trace)
	}
	if err != nil {
		return nil, err
	}
	out := &ledger.Move{}
	after, _ := planned.Pod(uid)
	for _, have := range record.Claims {
		if !movable(have) {
			continue
		}
		at := slices.IndexFunc(after.Claims, func(n ledger.Claim) bool {
			return n.Key() == have.Key()
		})
		if at < 0 || have.CPUs != nil && after.Claims[at].CPUs.Use != have.CPUs.Use {
			return nil, errdefs.Refuse(errdefs.Infeasible, "%s has %s, which an admission would not allocate to it now", have.Owner,
				have.Content())
		}
		out.From, out.To = append(out.From, have), append(out.To, after.Claims[at])
	}
	if err := nearDevices(view, record, after); err != nil {
		return nil, err
	}
	if stays {
		return out, withinNodes(view, record, out)
	}
	return out, nil
}

// withinNodes refuses a move of a pod that moves memory, or that gives a container CPUs of a NUMA node on which it
// has neither CPUs nor memory.
func withinNodes(view *ledger.View, record *ledger.Pod, m *ledger.Move) error {
	for i := range m.To {
		have, gets := &m.From[i], &m.To[i]
		own := nodesIn(view, &ledger.Pod{Claims: slices.DeleteFunc(slices.Clone(record.Claims),
			func(c ledger.Claim) bool { return c.Owner != have.Owner })})
		then := nodesIn(view, &ledger.Pod{Claims: m.To[i : i+1]})
		if !then.IsSubsetOf(own) || gets.Memory != nil && then != ledger.NodesOf(have.Memory) {
			return errdefs.Refuse(errdefs.ResizeDeferred, "the %s of %s would leave NUMA nodes %s for %s", have.Resource, have.Owner,
				nodesIn(view, &ledger.Pod{Claims: m.From[i : i+1]}), then)
		}
	}
	return nil
}

// nearDevices refuses a move that takes the CPUs or memory of a container away from the NUMA nodes of its
// devices, if all of them are near these nodes. A topology policy other than single-numa-node may allow that to an
// admission.
func nearDevices(view *ledger.View, before, after *ledger.Pod) error {
	near := deviceNodes(before)
	on := func(p *ledger.Pod, i int) numa.Mask { return nodesIn(view, &ledger.Pod{Claims: p.Claims[i : i+1]}) }
	for i := range after.Claims {
		c := &after.Claims[i]
		devices := near[c.Owner.Container]
		if c.CPUs == nil && c.Memory == nil || devices.IsEmpty() || on(after, i).IsSubsetOf(devices) {
			continue
		}
		at := slices.IndexFunc(before.Claims, func(o ledger.Claim) bool {
			return o.Key() == c.Key()
		})
		if at >= 0 && on(before, at).IsSubsetOf(devices) {
			return errdefs.Refuse(errdefs.ResizeDeferred,
				"the devices of %s are near NUMA nodes %s, and its %s would move to NUMA nodes %s", c.Owner, devices, c.Resource,
				on(after, i))
		}
	}
	return nil
}

// deviceNodes returns the NUMA nodes of the devices of each container of a pod, by name, and of all of them by an empty name.
// Devices that another program has allocated count, too.
func deviceNodes(p *ledger.Pod) map[string]numa.Mask {
	near := map[string]numa.Mask{}
	put := func(container string, nodes numa.Mask) {
		near[container] = near[container].Union(nodes)
		near[""] = near[""].Union(nodes) // the pod as a whole
	}
	for i := range p.Claims {
		if c := &p.Claims[i]; c.Devices != nil {
			for _, d := range c.Devices.Devices {
				put(c.Owner.Container, d.Nodes)
			}
		}
	}
	for i := range p.Pod.Containers {
		for _, d := range p.Pod.Containers[i].ExternalDevices {
			put(p.Pod.Containers[i].Name, d.Nodes)
		}
	}
	return near
}

// nodesIn returns the NUMA nodes of a pod's CPUs and memory.
func nodesIn(view *ledger.View, p *ledger.Pod) (nodes numa.Mask) {
	for i := range p.Claims {
		if c := &p.Claims[i]; c.CPUs != nil {
			nodes = nodes.Union(view.Machine().NodesOf(c.CPUs.Set))
		} else {
			nodes = nodes.Union(ledger.NodesOf(c.Memory))
		}
	}
	return nodes
}

// initializing refuses, for now, to change the CPUs of containers on which an init container of the pod runs, or is to run: until the
// first app container starts, the pod may be in its init phase. A pod without running containers can change.
func initializing(view *ledger.View, pod *ledger.Pod, changes []ledger.Claim) error {
	started := false
	for b := range view.BindingsOf(pod.UID()) {
		container := pod.Pod.Container(b.Owner.Container)
		if container != nil && container.Role == workload.App {
			return nil
		}
		started = true
	}
	for i := range pod.Claims {
		early := &pod.Claims[i]
		container := pod.Pod.Container(early.Owner.Container)
		if !started || early.CPUs == nil || container == nil || !container.Role.Feeds() {
			continue
		}
		for _, c := range changes {
			have, _ := pod.Claim(c.Owner.Container, c.Resource)
			changes := c.CPUs != nil && have.CPUs != nil && c.CPUs.Set != have.CPUs.Set && c.Owner != early.Owner
			if changes && have.CPUs.Set.Overlaps(early.CPUs.Set) {
				return errdefs.Refuse(errdefs.ResizeDeferred,
					"init container %s runs on CPUs %s of container %s until the pod's app containers start",
					early.Owner.Container, early.CPUs.Set.Intersect(have.CPUs.Set), c.Owner.Container)
			}
		}
	}
	return nil
}

// steps plans the steps of a move. record is the pod with the claims that it has, and before with the amounts before a
// resize; nil without one.
func (e *Engine) steps(ctx context.Context, b admission.Basis, record *ledger.Pod, m *ledger.Move, before *workload.Pod,
	trace *ledger.Trace) (*planned, error) {
	view, uid, out := b.View, record.UID(), &planned{move: *m}
	if err := initializing(view, record, m.To); err != nil {
		return nil, err
	}
	start := ledger.NewDraft(view)
	start.PutPod(clone(record))
	// Claims that only a plan has, as of init containers that have ended, are not in the final view.
	final := ledger.NewDraft(start.View())
	final.AddClaims(uid, m.To...)
	if err := b.Bus.Validate(ctx, final.View(), hint.Request{Pod: &record.Pod, Container: -1, Running: true, Before: before},
		trace); err != nil {
		return nil, err
	}
	var err error
	if out.Plan, err = transition.New(start.View(), []transition.Change{moveOf(uid, m)}); err != nil {
		return nil, err
	}
	// From now on, the move keeps to what it holds.
	out.move.Held = out.Held
	moves := clone(record)
	moves.Move = &out.move
	start.PutPod(moves)
	if start.View().SharedCPUs().IsEmpty() && !view.SharedCPUs().IsEmpty() && view.AnyShares() {
		return nil, errdefs.Refuse(errdefs.ResizeDeferred, "pod %s would hold all shared CPUs while it moves, and others run on them",
			&record.Pod)
	}
	if out.Plan, err = transition.New(start.View(), []transition.Change{moveOf(uid, m)}); err != nil {
		return nil, err
	}
	out.begin = begun(start.View(), uid, out.Plan, m)
	return out, nil
}

// begun returns the claims of a move after the first steps of its plan, which only add to them.
func begun(view *ledger.View, uid string, plan *transition.Plan, m *ledger.Move) []ledger.Claim {
	draft := ledger.NewDraft(view)
	for _, s := range plan.Steps {
		if s.Kind != transition.Widen {
			break
		}
		s.Apply(draft)
	}
	pod, _ := draft.View().Pod(uid)
	return slices.DeleteFunc(slices.Clone(pod.Claims), func(c ledger.Claim) bool {
		return !slices.ContainsFunc(m.From, func(f ledger.Claim) bool {
			return f.Key() == c.Key()
		})
	})
}

func clone(p *ledger.Pod) *ledger.Pod {
	out := *p
	out.Claims = slices.Clone(p.Claims)
	return &out
}

// containersOf returns the containers of some requests; a request for a pod as a whole is for the pod and all
// of them.
func containersOf(requests []hint.Request) (names []string) {
	for _, req := range requests {
		if req.Container >= 0 {
			names = append(names, req.Pod.Containers[req.Container].Name)
			continue
		}
		names = append(names, "")
		for i := range req.Pod.Containers {
			names = append(names, req.Pod.Containers[i].Name)
		}
	}
	return names
}

func moveOf(uid string, m *ledger.Move) transition.Change {
	return transition.Change{Pod: uid, From: m.From, To: m.To}
}

// moving refuses a change of a pod that moves.
func moving(p *ledger.Pod) error {
	if p.Move == nil {
		return nil
	}
	help := ""
	if p.Move.Before != "" {
		help = ", or resize it back to undo the move"
	}
	return errdefs.Refuse(errdefs.ResizeDeferred, "pod %s is moving to other CPUs or memory nodes: try again when the move has ended%s",
		&p.Pod, help)
}

// elsewhere plans a resize as a move, after the providers have refused it where the pod is. The
// error is that refusal, or one of the move.
func (r *resizing) elsewhere(ctx context.Context, b admission.Basis, old, record *ledger.Pod, refused error) error {
	e := r.engine
	if there := (*hint.OtherNodes)(nil); !errors.As(refused, &there) {
		return refused
	}
	var changed []string
	for i := range record.Pod.Containers {
		c := &record.Pod.Containers[i]
		if before := old.Pod.Container(c.Name); before != nil &&
			(before.Requests[workload.CPU] != c.Requests[workload.CPU] || before.Requests[workload.Memory] != c.Requests[workload.Memory]) {
			changed = append(changed, c.Name)
		}
	}
	if record.Pod.Resources != nil {
		changed = nil // the pod as a whole
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "not in place: " + refused.Error() + "; other NUMA nodes are tried"})
	limit, field := r.moveLimit()
	p, err := e.planMove(ctx, b, old, record, changed, r.trace)
	if err != nil {
		if limit == NoDisruption && errdefs.ClassOf(err) == errdefs.Refused {
			return refused
		}
		return r.notElsewhere(ctx, b, old, record, changed, refused, err)
	}
	d := r.disturbance(old, p)
	allowed := tooMuch(d, limit, nil) == nil
	if e.Mover != nil && p.Cost.Bytes > 0 {
		if err := e.Mover.CheckMove(ctx, b.View, record.UID(), &p.move); err != nil {
			if !allowed && errdefs.ClassOf(err) == errdefs.Refused {
				return refused
			}
			return err
		}
	}
	if !allowed {
		r.forbidden = d
		reason, _ := errdefs.ReasonOf(refused)
		return because(reason, refused, field+" does not allow the move to other NUMA nodes that would serve it")
	}
	if c, ok := p.late(); ok {
		return errdefs.Refuse(errdefs.ResizeDeferred,
			"%s would get CPUs or memory that another container of the pod has to release first: resize one container after the other",
			c.Owner)
	}
	p.move.BytesPerSecond, p.move.Before = e.BytesPerSecond, old.Digest
	r.claims, r.move = p.begin, p
	return nil
}

// late returns a claim that does not have all that it will have after the first steps.
func (p *planned) late() (ledger.Claim, bool) {
	// Parts of a pod's memory are not counted by node.
	whole := slices.ContainsFunc(p.move.To, func(c ledger.Claim) bool { return c.Owner.Container == "" && c.Memory != nil })
	for _, to := range p.move.To {
		for _, c := range p.begin {
			if c.Key() == to.Key() &&
				(to.CPUs != nil && !to.CPUs.Set.IsSubsetOf(c.CPUs.Set) || !ledger.NodesOf(to.Memory).IsSubsetOf(ledger.NodesOf(c.Memory)) ||
					!(whole && to.Owner.Container != "") && !covers(c.Memory, to.Memory)) {
				return to, true
			}
		}
	}
	return ledger.Claim{}, false
}

// covers returns whether blocks have at least the memory of others on each node.
func covers(blocks, others []ledger.Block) bool {
	for id := range ledger.NodesOf(others).All() {
		if on(blocks, id) < on(others, id) {
			return false
		}
	}
	return true
}

// back reverses the move of a pod that is resized back while it moves. view has the pod with the amounts
// that it had before, and with all its claims.
func (r *resizing) back(view *ledger.View, have *ledger.Pod) error {
	back := have.ReversedMove()
	plan, err := transition.New(view, []transition.Change{moveOf(have.UID(), &back)})
	if err != nil {
		return fmt.Errorf("reverse the move of pod %s: %w", &have.Pod, err)
	}
	r.trace.Add(ledger.Step{Kind: ledger.StepNoted, Text: "the move of the resize before is reversed"})
	r.move = &planned{Plan: plan, move: back}
	r.claims = begun(view, have.UID(), plan, &back)
	return nil
}

// moveLimit returns the limit of the disturbance by a move, and the field of the request that has it.
func (r *resizing) moveLimit() (Disruption, string) {
	if most, move := r.request.MaxDisruption, r.request.MaxMove; move != AnyDisruption && (most == AnyDisruption || move < most) {
		return move, "max_move_disruption"
	}
	return r.request.MaxDisruption, "max_disruption"
}

// disturbance returns how much a move disturbs the containers.
func (r *resizing) disturbance(old *ledger.Pod, p *planned) Disruption {
	after := clone(old)
	after.Move = &p.move
	return disruption(old, after.AfterMove(), nil)
}

// because is a refusal with another reason and more text.
func because(reason errdefs.Reason, refused error, text string) error {
	out := errdefs.Refuse(reason, "%s; %s", refused.Error(), text)
	if first := (*errdefs.Error)(nil); errors.As(refused, &first) {
		out.Provider, out.Resource = first.Provider, first.Resource
	}
	return out
}

// notElsewhere is the refusal of a resize that is possible neither in place nor as a move. It is
// deferred if the move would be possible without other pods.
func (r *resizing) notElsewhere(ctx context.Context, b admission.Basis, old, record *ledger.Pod, changed []string,
	refused, err error) error {
	if errdefs.ClassOf(err) != errdefs.Refused {
		return err
	}
	reason := errdefs.Infeasible
	alone := ledger.NewDraft(b.View)
	for p := range b.View.Pods() {
		if p.UID() != record.UID() {
			alone.RemovePod(p.UID())
		}
	}
	if _, err := r.engine.planMove(ctx, b.On(alone.View()), old, record, changed, &ledger.Trace{}); err == nil {
		reason = errdefs.ResizeDeferred
	}
	_, message := errdefs.Verdict(err)
	return because(reason, refused, "other NUMA nodes cannot serve it: "+message)
}

// Moved is the result of Advance.
type Moved struct {
	// Step is the step that was carried out; nil without one.
	Step *transition.Step
	// Pod is the pod after it.
	Pod *ledger.Pod
	// Done is whether the pod does not move any more.
	Done bool
}

// ErrMemoryStays means that the next step of a move moves memory, which must stay for now.
var ErrMemoryStays = errdefs.Unavailablef("its memory moves when the limit of bytes per second allows it")

// Advance makes the next step of a pod's move. The step before must have been carried out: until
// then, the error is of class Unavailable. A pod that does not move, or is not admitted, is done.
//
// Each step is a commit of its own, and depends only on the ledger. So a move continues
// after a crash at any moment. If no next step is possible, the error is of class Refused. It does not wait for another
// operation on the pod, such as a removal: the error is then of class Unavailable. With memoryStays, a step that moves
// memory is not made, and the error is ErrMemoryStays.
func (e *Engine) Advance(ctx context.Context, uid string, memoryStays bool) (Moved, error) {
	unlock, err := e.TryLockPod(uid)
	if err != nil {
		return Moved{}, fmt.Errorf("move pod %s: %w", uid, err)
	}
	defer unlock()
	view := e.Ledger.View()
	pod, ok := view.Pod(uid)
	if !ok || pod.Move == nil {
		return Moved{Done: true, Pod: pod}, nil
	}
	if e.Mover != nil {
		if err := e.Mover.Settled(ctx, view, uid); err != nil {
			return Moved{}, fmt.Errorf("move pod %s: %w", &pod.Pod, err)
		}
	}
	plan, err := transition.New(view, []transition.Change{moveOf(uid, pod.Move)})
	if err != nil {
		return Moved{}, fmt.Errorf("move pod %s: %w", &pod.Pod, err)
	}
	steps := plan.Steps
	migrated := func(s transition.Step) bool {
		return s.Kind == transition.Migrate && slices.Contains(pod.Move.Migrating, s.Owner.Container)
	}
	if len(steps) > 0 && migrated(steps[0]) {
		steps = steps[1:]
	}
	if memoryStays && len(steps) > 0 && steps[0].Kind == transition.Migrate && !slices.Contains(pod.Move.Stayed, steps[0].Owner.Container) {
		return Moved{}, fmt.Errorf("move pod %s: %w", &pod.Pod, ErrMemoryStays)
	}
	record := clone(pod)
	record.Acknowledged = nil
	next := *pod.Move
	record.Move = &next
	out := Moved{Pod: record}
	var claims []ledger.Claim
	if len(steps) > 0 {
		s := steps[0]
		out.Step = &s
		switch s.Kind {
		case transition.Migrate:
			next.Migrating = append(slices.Clone(next.Migrating), s.Owner.Container)
		case transition.Narrow:
			next.Migrating = slices.DeleteFunc(slices.Clone(next.Migrating), func(name string) bool { return name == s.Owner.Container })
			claims = s.After
		default:
			claims = s.After
		}
	}
	if len(steps) <= 1 && (out.Step == nil || out.Step.Kind != transition.Migrate) {
		// Steps change CPUs and memory only; the affinity changes with the last one, also that of claims that had no step.
		record, claims, out.Done = record.AfterMove(), nil, true
	}
	out.Pod, err = e.replace(ctx, view, record, claims)
	return out, err
}

// replace commits a pod's record with some claims of it replaced, and writes its claim record before.
func (e *Engine) replace(ctx context.Context, view *ledger.View, record *ledger.Pod, claims []ledger.Claim) (*ledger.Pod, error) {
	uid := record.UID()
	put := func(d *ledger.Draft) {
		d.PutPod(clone(record))
		d.AddClaims(uid, claims...)
	}
	draft := ledger.NewDraft(view)
	put(draft)
	restore, err := e.RecordClaims(ctx, draft.View(), uid, true)
	if err != nil {
		return nil, err
	}
	after, err := e.Update(ctx, func(d *ledger.Draft) error {
		before, _ := view.Pod(uid)
		if now, ok := d.View().Pod(uid); !ok || now != before {
			return errdefs.Conflictf("the pod has changed meanwhile")
		}
		put(d)
		return nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("move pod %s: %w", &record.Pod, err), restore())
	}
	pod, _ := after.Pod(uid)
	return pod, nil
}
