package admission_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/admission"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/live"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// check compares the ledger with the invariants. The containers follow it.
func (h *course) check() {
	view := h.ledger.View()
	found := check.View(view)
	for _, f := range found {
		if f.Kind == check.Structural || !h.changed {
			h.Fatalf("%s", f.Text)
		}
	}
	for p := range view.Pods() {
		for i := range p.Claims {
			c := &p.Claims[i]
			if container := p.Pod.Container(c.Owner.Container); container != nil {
				h.hasRequest(c, container.Requests)
			}
		}
	}
	h.tells(view, found)
	h.kernel.Follow(h, view)
}

// hasRequest fails if a claim is smaller than the request.
func (h *course) hasRequest(c *ledger.Claim, q workload.Quantities) {
	has, wants := uint64(0), uint64(q[workload.Resource(c.Resource)])
	switch {
	case c.CPUs != nil && (c.CPUs.Use == ledger.CPUExclusive || c.CPUs.Use == ledger.CPUPodExclusive):
		has = uint64(c.CPUs.Set.Len()) * 1000
	case c.Memory != nil:
		for _, b := range c.Memory {
			has += b.Bytes
		}
	default:
		return
	}
	if has < wants {
		h.Fatalf("%s has %s, and requests %d", c.Owner, c.Content(), wants)
	}
}

// tells fails if something that a pod has and the machine lacks is no finding, or more than one, or if a finding is about
// nothing that is lacking.
func (h *course) tells(view *ledger.View, found []check.Finding) {
	machine := view.Machine()
	count := func(rules []check.Rule, owner ledger.Owner, resource string) (n int) {
		for _, f := range found {
			if slices.Contains(rules, f.Rule) && f.Owner == owner && f.Resource == resource {
				n++
			}
		}
		return n
	}
	lost := map[string]bool{}
	for p := range view.Pods() {
		_, whole := p.Claim("", string(workload.Memory))
		for i := range p.Claims {
			c := &p.Claims[i]
			wants := 0
			switch {
			case c.CPUs != nil && (c.CPUs.Use == ledger.CPUExclusive || c.CPUs.Use == ledger.CPUPod):
				if gone := c.CPUs.Set.Minus(machine.CPUs()); !gone.Minus(machine.Offline()).IsEmpty() {
					wants++
				}
				if c.CPUs.Set.Overlaps(machine.Offline()) {
					wants++
				}
			case c.Memory != nil && (c.Owner.Container == "" || !whole):
				for _, b := range c.Memory {
					if !b.Nodes.IsSubsetOf(machine.NodeMask()) {
						wants++
					}
				}
			}
			if got := count([]check.Rule{check.RuleOffline, check.RuleVanished}, c.Owner, c.Resource); got != wants {
				h.Fatalf("%s has %s of a changed machine: %d findings, want %d: %v", c.Owner, c.Content(), got, wants, found)
			}
			lost[p.UID()] = lost[p.UID()] || wants > 0
		}
	}
	for resource := range h.resources(view) {
		if len(h.moving()) > 0 {
			break // a moving container has blocks on both sides
		}
		lacks := lacking(view, resource) > 0
		if n := count([]check.Rule{check.RuleMemory}, ledger.Owner{}, resource); (n > 0) != lacks {
			h.Fatalf("the machine lacks %s: %v, with %d findings: %v", resource, lacks, n, found)
		}
	}
	for i, f := range found {
		if slices.ContainsFunc(found[:i], f.Same) {
			h.Fatalf("twice: %s", f.Text)
		}
	}
	losses := live.Losses(view)
	for uid, lost := range lost {
		if p, _ := view.Pod(uid); p.Move == nil && lost && !slices.ContainsFunc(losses,
			func(l live.Loss) bool { return l.UID == uid }) {
			h.Fatalf("what pod %s has lost is a finding, and no loss: %v", uid, found)
		}
	}
}

// resources returns the memory resources of which pods have something.
func (h *course) resources(view *ledger.View) map[string]bool {
	out := map[string]bool{}
	for p := range view.Pods() {
		for i := range p.Claims {
			if p.Claims[i].Memory != nil {
				out[p.Claims[i].Resource] = true
			}
		}
	}
	return out
}

// lacking returns how much memory of a machine is lacking, however the memory of pods is spread over their nodes.
func lacking(view *ledger.View, resource string) (most uint64) {
	has, _ := ledger.PresentMemory(view.Machine(), workload.Resource(resource))
	all := view.Machine().NodeMask()
	for nodes := all; nodes != 0; nodes = (nodes - 1) & all {
		most = max(most, excess(view, resource, nodes, &has))
	}
	return most
}

// excess returns by how much the memory that pods must have on some nodes is more than those have. What init containers
// pass on counts once. What is on nodes that are gone is on the others of its nodes; if there are none, it is nowhere.
func excess(view *ledger.View, resource string, nodes numa.Mask, has *ledger.NodeBytes) uint64 {
	var held, have uint64
	for id := range nodes.All() {
		have += has[id]
	}
	for p := range view.Pods() {
		_, whole := p.Claim("", resource)
		running, inits := map[numa.Mask]uint64{}, map[numa.Mask]uint64{}
		for i := range p.Claims {
			c := &p.Claims[i]
			if c.Resource != resource || whole && c.Owner.Container != "" {
				continue
			}
			container := p.Pod.Container(c.Owner.Container)
			for _, b := range c.Memory {
				on := b.Nodes.Intersect(view.Machine().NodeMask())
				switch {
				case on.IsEmpty() || !on.IsSubsetOf(nodes):
				case container != nil && container.Role.Feeds():
					inits[on] = max(inits[on], b.Bytes)
				default:
					running[on] += b.Bytes
				}
			}
		}
		for on, bytes := range running {
			inits[on] = max(inits[on], bytes)
		}
		for _, bytes := range inits {
			held += bytes
		}
	}
	return held - min(held, have)
}

// ended returns a view after all moves.
func ended(view *ledger.View) *ledger.View {
	d := ledger.NewDraft(view)
	for p := range view.Pods() {
		d.PutPod(p.AfterMove())
	}
	return d.View()
}

// worse fails if something that is no change of the machine has made a finding, or more memory lacking when all moves have
// ended. A move may return to what the machine lacks.
func (h *course) worse(before, after *ledger.View) {
	for p := range after.Pods() {
		if was, ok := before.Pod(p.UID()); ok && p.Move != nil && was.Move != nil && p.Move.Canceled != was.Move.Canceled {
			return
		}
	}
	before, after = ended(before), ended(after)
	was := check.View(before)
	for _, f := range check.View(after) {
		same := func(o check.Finding) bool {
			return o.Rule == f.Rule && (o.Owner == f.Owner || f.Rule == check.RuleShared) && o.Resource == f.Resource
		}
		if f.Rule != check.RuleMemory && !slices.ContainsFunc(was, same) {
			h.Fatalf("a new finding: %s", f.Text)
		}
	}
	for resource := range h.resources(after) {
		if was, is := lacking(before, resource), lacking(after, resource); is > was {
			h.Fatalf("%d bytes of %s are lacking, before %d", is, resource, was)
		}
	}
}

// content describes the claims of a pod.
func content(p *ledger.Pod) string {
	var out []string
	for i := range p.Claims {
		out = append(out, fmt.Sprintf("%s %s", p.Claims[i].Owner, p.Claims[i].Content()))
	}
	return strings.Join(out, "; ")
}

// admit admits a pod, which happens as a dry run has said.
func (h *course) admit(p workload.Pod) {
	var said admission.Verdict
	var err error
	if !h.failing {
		said, err = h.Admit(context.Background(), admission.Request{Pod: p, DryRun: true})
		h.may(err, errdefs.Invalid)
	}
	v, err := h.Admit(context.Background(), admission.Request{Pod: p})
	h.note("admission of %s: %s %s", p.UID, v.Outcome, v.Message)
	if !h.may(err, errdefs.Invalid) || h.failing {
		return
	}
	if v.Outcome != said.Outcome || v.Message != said.Message || v.Pod != nil && content(v.Pod) != content(said.Pod) {
		h.Fatalf("a dry run says %s %s; without: %s", said.Outcome, said.Message, content(v.Pod))
	}
}

// resize resizes a pod, which happens as a dry run has said.
func (h *course) resize(req live.ResizeRequest) (live.Resized, error) {
	if h.failing {
		return h.Resize(context.Background(), req)
	}
	try := req
	try.DryRun = true
	said, err := h.Resize(context.Background(), try)
	got, err2 := h.Resize(context.Background(), req)
	switch {
	case (err == nil) != (err2 == nil):
		h.Fatalf("a dry run of the resize: %v; without: %v", err, err2)
	case got.Outcome != said.Outcome || got.Message != said.Message || got.Disruption != said.Disruption:
		h.Fatalf("a dry run of the resize says %s %s; without: %s %s", said.Outcome, said.Message, got.Outcome, got.Message)
	case got.Pod != nil && content(got.Pod) != content(said.Pod):
		h.Fatalf("a dry run of the resize says %s; without: %s", content(said.Pod), content(got.Pod))
	case got.Plan != nil && !reflect.DeepEqual(got.Plan.Steps, said.Plan.Steps):
		h.Fatalf("a dry run of the resize says %v; without: %v", said.Plan.Steps, got.Plan.Steps)
	}
	return got, err2
}
