package transition

import (
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// planner makes steps, on one view after the other.
type planner struct {
	view     *ledger.View
	capacity map[string]*ledger.NodeBytes
	// units are the units without all of their future resources.
	units []*unit
	made  []Step
	// beyond lets pods that move get CPUs that they do not hold, and CPUs and memory that they hold and the machine has no
	// more.
	beyond bool
	// turns counts the detours since the last CPU that reached its future owner.
	turns int
}

// unit is an owner with its claims before the first step and after the last one.
type unit struct {
	owner      ledger.Owner
	from, want []ledger.Claim
	// part is true if the pod has memory as a whole, so that its containers' memory is not counted.
	part bool

	// pod is the record that present and wide are of; nil as long as there are none.
	pod           *ledger.Pod
	present, wide []ledger.Claim
}

// held returns the claims of the units with everything that they have before, during and after some steps.
func (p *planner) held(steps []Step) (out []ledger.Claim) {
	during := map[ledger.Owner][]ledger.Claim{}
	for i := range steps {
		if s := &steps[i]; s.Kind != Migrate {
			during[s.Owner] = append(during[s.Owner], s.After...)
		}
	}
	for _, u := range p.units {
		all := widened(widened(p.have(u), u.from, u.part), u.want, u.part)
		for i := range all {
			for _, c := range during[u.owner] {
				if all[i].CPUs != nil && c.CPUs != nil && c.Provider == all[i].Provider && c.Resource == all[i].Resource {
					all[i] = withCPUs(all[i], all[i].CPUs.Set.Union(c.CPUs.Set))
				}
			}
		}
		out = append(out, all...)
	}
	return out
}

// path returns the steps from the present claims: along the way from the claims before the changes to those
// after them, backwards along the way in the other direction, or along the way from the present claims.
func (p *planner) path() ([]Step, error) {
	steps, err := p.at(before).steps(p.units)
	n, on := p.reaches(p.units, steps)
	if err == nil && on {
		return steps[n:], nil
	}
	var reversed []*unit
	for _, u := range p.units {
		reversed = append(reversed, &unit{owner: u.owner, from: u.want, want: u.from, part: u.part})
	}
	if steps, stuck := p.at(after).steps(reversed); stuck == nil {
		if n, ok := p.reaches(reversed, steps); ok {
			if steps, ok := p.backwards(steps[:n]); ok {
				return steps, nil
			}
		}
	}
	if on {
		return nil, err // from the claims before the changes, which are the present ones
	}
	return p.steps(p.units)
}

func before(u *unit) []ledger.Claim { return u.from }
func after(u *unit) []ledger.Claim  { return u.want }

// at returns a planner with other claims of the units.
func (p *planner) at(claims func(*unit) []ledger.Claim) *planner {
	d := ledger.NewDraft(p.view)
	for _, u := range p.units {
		if !equal(p.have(u), claims(u)) {
			d.AddClaims(u.owner.Pod, claims(u)...)
		}
	}
	return &planner{view: d.View(), capacity: p.capacity, beyond: p.beyond}
}

// reaches returns after how many steps from the claims of some units before their changes they have the present
// ones, if they ever have.
func (p *planner) reaches(units []*unit, steps []Step) (n int, ok bool) {
	present := map[ledger.Owner][]ledger.Claim{}
	differ := map[ledger.Owner]bool{}
	compare := func(owner ledger.Owner, claims []ledger.Claim) {
		delete(differ, owner)
		if !equal(claims, present[owner]) {
			differ[owner] = true
		}
	}
	for _, u := range units {
		present[u.owner] = p.have(u)
		compare(u.owner, u.from)
	}
	for i := range steps {
		if len(differ) == 0 {
			return i, true
		}
		compare(steps[i].Owner, steps[i].After)
	}
	return len(steps), len(differ) == 0
}

// backwards returns the steps that undo some steps, if the invariants allow them now.
func (p *planner) backwards(steps []Step) ([]Step, bool) {
	back := &planner{view: p.view, capacity: p.capacity, beyond: p.beyond}
	for _, s := range slices.Backward(steps) {
		u := p.units[slices.IndexFunc(p.units, func(u *unit) bool { return u.owner == s.Owner })]
		next, ok := back.possible(u, s.Before)
		switch {
		case s.Kind == Migrate:
		case !ok:
			return nil, false
		case cpusOf(s.After).IsSubsetOf(cpusOf(s.Before)) && nodesOf(s.After).IsSubsetOf(nodesOf(s.Before)):
			back.step(next, u, Widen, s.After, s.Before)
		case equal(s.Before, u.want) || !nodesOf(s.After).IsSubsetOf(nodesOf(s.Before)):
			back.release(next, u, s.After, s.Before)
		default:
			back.step(next, u, HandOver, s.After, s.Before)
		}
	}
	return back.made, true
}

// steps makes a way from the view of the planner to the future claims of some units.
func (p *planner) steps(units []*unit) ([]Step, error) {
	p = &planner{view: p.view, capacity: p.capacity, beyond: p.beyond, units: slices.Clone(units)}
	for {
		// All units widen first: from then on no other unit can get their new claims.
		moved := false
		for _, u := range p.units {
			moved = p.widen(u) || moved
		}
		for _, u := range p.units {
			moved = p.narrow(u) || moved
		}
		p.units = slices.DeleteFunc(p.units, p.reached)
		switch {
		case len(p.units) == 0:
			return p.made, nil
		case moved:
			p.turns = 0
		case p.handOver() || p.detour():
		default:
			return nil, p.stuck()
		}
	}
}

// look finds the claims of a unit, unless its pod is that of the last time: of many units that wait for each other, a round
// changes few.
func (p *planner) look(u *unit) {
	pod, _ := p.view.Pod(u.owner.Pod)
	if u.pod == pod {
		return
	}
	u.pod, u.present = pod, make([]ledger.Claim, len(u.want))
	for i := range u.want {
		u.present[i] = pod.Claims[find(pod, &u.want[i])]
	}
	u.wide = widened(u.present, u.want, u.part)
}

// have returns the present claims of a unit, in the order of its future claims. They must not be changed.
func (p *planner) have(u *unit) []ledger.Claim {
	p.look(u)
	return u.present
}

// wide returns the present claims of a unit together with its future ones. They must not be changed.
func (p *planner) wide(u *unit) []ledger.Claim {
	p.look(u)
	return u.wide
}

// reached returns whether a unit has exactly its future claims.
func (p *planner) reached(u *unit) bool {
	return slices.EqualFunc(p.have(u), u.want, func(a, b ledger.Claim) bool { return same(&a, &b) })
}

// widen gives a unit its future resources, if they are free.
func (p *planner) widen(u *unit) bool {
	have, wide := p.have(u), p.wide(u)
	return !equal(have, wide) && p.make(u, Widen, have, wide)
}

// narrow releases all other resources of a unit that has its future resources.
func (p *planner) narrow(u *unit) bool {
	have := p.have(u)
	if equal(have, u.want) || !equal(have, p.wide(u)) {
		return false
	}
	next, ok := p.possible(u, u.want)
	if !ok {
		return false
	}
	p.release(next, u, have, u.want)
	return true
}

// release makes the step that releases resources of a unit, after the one that moves its memory off the
// released nodes.
func (p *planner) release(next *ledger.View, u *unit, from, to []ledger.Claim) {
	if nodes := nodesOf(to); u.owner.Container != "" && !nodesOf(from).IsSubsetOf(nodes) {
		p.made = append(p.made, Step{
			Kind: Migrate, Owner: u.owner, Before: from, After: from, To: nodes, Bytes: leaving(u.from, from, to),
		})
	}
	p.step(next, u, Narrow, from, to)
}

// make adds a step if the invariants allow it.
func (p *planner) make(u *unit, kind Kind, from, to []ledger.Claim) bool {
	next, ok := p.possible(u, to)
	if ok {
		p.step(next, u, kind, from, to)
	}
	return ok
}

func (p *planner) step(next *ledger.View, u *unit, kind Kind, from, to []ledger.Claim) {
	p.view = next
	p.made = append(p.made, Step{Kind: kind, Owner: u.owner, Before: from, After: to})
}

// possible returns whether a unit may have some claims now, and the view with them.
func (p *planner) possible(u *unit, claims []ledger.Claim) (next *ledger.View, ok bool) {
	for i := range claims {
		c := &claims[i]
		if c.CPUs != nil && !c.CPUs.Set.IsSubsetOf(p.free(u, c)) {
			return nil, false
		}
	}
	if !u.part && p.short(u, claims) != "" {
		return nil, false
	}
	d := ledger.NewDraft(p.view)
	d.AddClaims(u.owner.Pod, claims...)
	next = d.View()
	if next.SharedCPUs().IsEmpty() && !p.view.SharedCPUs().IsEmpty() && next.AnyShares() {
		return nil, false
	}
	bad := slices.ContainsFunc(check.Pod(next, u.owner.Pod), func(f check.Finding) bool { return f.Kind == check.Structural })
	return next, !bad
}

// free returns the CPUs that a claim of a unit may have: those that it has, and those that no other owner
// has which may not share them. A pod that moves already gets no more than what it holds, if that is enough: then the same
// steps follow whatever other pods release meanwhile.
func (p *planner) free(u *unit, c *ledger.Claim) cpuset.Set {
	pod, _ := p.view.Pod(u.owner.Pod)
	names := pod.Pod.Names()
	var whole, others cpuset.Set
	for i := range pod.Claims {
		o := &pod.Claims[i]
		if o.CPUs == nil {
			continue
		}
		if o.CPUs.Use == ledger.CPUPod {
			whole = whole.Union(o.CPUs.Set)
		}
		if (o.Owner != c.Owner || o.Provider != c.Provider) && !check.MayShareCPUs(pod, names, c, o) {
			others = others.Union(o.CPUs.Set)
		}
	}
	free := whole
	if c.CPUs.OfNode() {
		own := pod.HeldCPUs()
		free = p.view.AllocatableCPUs().Minus(p.view.ExclusiveCPUs().Minus(own))
		switch moves := pod.Move != nil && len(pod.Move.Held) > 0; {
		case moves && p.beyond:
			free = free.Union(own) // what it holds may be offline, and is still its own
		case moves:
			free = free.Intersect(own)
		}
	}
	return free.Minus(others).Union(pod.Claims[find(pod, c)].CPUs.Set)
}

// short describes the memory that is missing for some claims; empty if there is enough. Only nodes
// on which the unit gets more are compared.
func (p *planner) short(u *unit, claims []ledger.Claim) string {
	pod, _ := p.view.Pod(u.owner.Pod)
	var use *ledger.MemoryUse
	for i := range claims {
		c := &claims[i]
		limit := p.capacity[c.Resource]
		if c.Memory == nil || limit == nil {
			continue
		}
		if use == nil {
			use = p.view.MemoryUse()
		}
		held := use.Held(c.Resource)
		ahead := pod.HeldMemory(c.Resource)
		for id := range ahead {
			held[id] -= min(held[id], ahead[id])
		}
		now, then := bytesOf(pod.Claims[find(pod, c)].Memory), bytesOf(c.Memory)
		for id := range ledger.NodesOf(c.Memory).All() {
			more := then[id] - min(then[id], now[id])
			if p.beyond && more <= ahead[id] {
				continue
			}
			if free := limit[id] - min(limit[id], held[id]); more > 0 && more > free && grows(pod, claims, c.Resource)[id] > free {
				return fmt.Sprintf("%d bytes of %s on NUMA node %d, where %d are free", more, c.Resource, id,
					limit[id]-min(limit[id], held[id]))
			}
		}
	}
	return ""
}

// grows returns how much more memory of each NUMA node counts for a pod with some claims. Init containers pass memory on,
// so it may be less than the claims are larger.
func grows(pod *ledger.Pod, claims []ledger.Claim, resource string) (more ledger.NodeBytes) {
	next := *pod
	next.Claims = slices.Clone(pod.Claims)
	for i := range claims {
		next.Claims[find(pod, &claims[i])] = claims[i]
	}
	now, then := pod.ClaimedMemory(resource), next.ClaimedMemory(resource)
	for id := range more {
		more[id] = then[id] - min(then[id], now[id])
	}
	return more
}

// handOver lets a unit give back CPUs for which others wait, as long as it has enough. If there is none, a
// unit takes those of its CPUs that are free.
func (p *planner) handOver() bool {
	for _, u := range p.units {
		have := p.have(u)
		for i := range have {
			if have[i].CPUs == nil {
				continue
			}
			set := have[i].CPUs.Set
			surplus := set.Len() - min(u.from[i].CPUs.Set.Len(), u.want[i].CPUs.Set.Len())
			give := p.awaited(u, set.Minus(u.want[i].CPUs.Set))
			give = give.Lowest(min(max(surplus, 0), give.Len()))
			if !give.IsEmpty() && p.replace(u, HandOver, i, set.Minus(give)) {
				return true
			}
		}
	}
	for _, u := range p.units {
		have := p.have(u)
		for i := range have {
			c := &have[i]
			if c.CPUs == nil {
				continue
			}
			gain := u.want[i].CPUs.Set.Minus(c.CPUs.Set).Intersect(p.free(u, c))
			if !gain.IsEmpty() && p.replace(u, Widen, i, c.CPUs.Set.Union(gain)) {
				p.turns = 0
				return true
			}
		}
	}
	return false
}

// detour gives a unit of an exchange a CPU that no unit is to get, so that it can give back one for which
// another unit waits.
func (p *planner) detour() bool {
	var wanted cpuset.Set
	for _, u := range p.units {
		wanted = wanted.Union(cpusOf(u.want))
	}
	if p.turns++; p.turns > 1 {
		return false // the last one was without effect
	}
	for _, u := range p.units {
		have := p.have(u)
		for i := range have {
			c := &have[i]
			if c.CPUs == nil || p.awaited(u, c.CPUs.Set.Minus(u.want[i].CPUs.Set)).IsEmpty() {
				continue
			}
			spare := p.free(u, c).Minus(c.CPUs.Set).Minus(wanted).Lowest(1)
			if !spare.IsEmpty() && p.replace(u, Widen, i, c.CPUs.Set.Union(spare)) {
				return true
			}
		}
	}
	return false
}

// replace makes a step that changes the CPUs of one claim.
func (p *planner) replace(u *unit, kind Kind, i int, set cpuset.Set) bool {
	have := p.have(u)
	claims := slices.Clone(have)
	claims[i] = withCPUs(have[i], set)
	return p.make(u, kind, have, claims)
}

// awaited returns those of some CPUs for which other units wait.
func (p *planner) awaited(u *unit, cpus cpuset.Set) (out cpuset.Set) {
	for _, o := range p.units {
		if o == u {
			continue
		}
		have := p.have(o)
		for i := range have {
			if have[i].CPUs != nil {
				out = out.Union(o.want[i].CPUs.Set.Minus(have[i].CPUs.Set).Intersect(cpus))
			}
		}
	}
	return out
}

// stuck describes the first unit that cannot get its CPUs.
func (p *planner) stuck() error {
	for _, u := range p.units {
		wide := p.wide(u)
		if text := p.short(u, wide); text != "" && !u.part {
			return errdefs.Refuse(errdefs.ResizeDeferred, "%s needs room for its memory on both sides while it moves: %s", u.owner, text)
		}
		for i := range wide {
			if wide[i].CPUs == nil {
				continue
			}
			if missing := wide[i].CPUs.Set.Minus(p.free(u, &wide[i])); !missing.IsEmpty() {
				return errdefs.Refuse(errdefs.ResizeDeferred, "%s waits for CPUs %s, and no CPU is free to exchange them", u.owner, missing)
			}
		}
		return errdefs.Refuse(errdefs.ResizeDeferred,
			"%s cannot get CPUs %s and memory of NUMA nodes %s while others run: the shared CPUs would be used up",
			u.owner, cpusOf(wide), nodesOf(wide))
	}
	return errdefs.Internalf("a plan of %d steps did not end", len(p.made))
}
