package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Fit refuses a pod for which the node has no room left with the other pods of
// the view, with the reasons and words of the kubelet: OutOfpods, OutOfcpu,
// OutOfmemory, OutOfephemeral-storage, or of huge pages. The first one that lacks
// counts, in this order. Requests of resources that the node does not have are
// not held against it: another part of the cluster may provide them. Devices are
// the device manager's to count.
//
// Whether the pod is part of the view already makes no difference.
func (m *Manager) Fit(view *ledger.View, pod *workload.Pod) error {
	used := m.requested(view, pod.UID)
	if m.pods > 0 && used[Pods] >= m.pods {
		return outOf(Pods, 1, used[Pods], m.pods)
	}
	return m.lacks(view, workload.EffectiveRequests(pod, m.cfg.Features), used)
}

// lacks refuses requests that are more than is allocatable and not used, by pods or, of huge pages, by others.
func (m *Manager) lacks(view *ledger.View, requests, used workload.Quantities) error {
	taken := view.Rules().TakenPages
	if len(taken) > 0 {
		used = maps.Clone(used)
	}
	for _, p := range taken {
		used[workload.Resource(p.Resource)] += int64(min(p.Outside, math.MaxInt64/2))
	}
	order := []workload.Resource{workload.CPU, workload.Memory, workload.EphemeralStorage}
	for r := range requests.Sorted() {
		if r.IsHugePages() {
			order = append(order, r)
		}
	}
	for _, r := range order {
		have, known := m.allocatable[r]
		// Huge pages of a size that the kernel does not have are none.
		if need := requests[r]; need > 0 && (known || r.IsHugePages()) && need > have-used[r] {
			return outOf(r, need, used[r], have)
		}
	}
	return nil
}

// fitResize refuses a pod that is here more than the node can give it: as
// infeasible what exceeds all that is allocatable, as deferred what is not left
// with the other pods at the moment. A pod that requests no more of a resource than
// it has is not refused for that resource.
func (m *Manager) fitResize(view *ledger.View, old, wanted *workload.Pod) error {
	have := workload.EffectiveRequests(old, m.cfg.Features)
	more := workload.Quantities{}
	for r, amount := range workload.EffectiveRequests(wanted, m.cfg.Features) {
		if amount > have[r] {
			more[r] = amount
		}
	}
	for r, need := range more.Sorted() {
		if most, known := m.allocatable[r]; known && need > most {
			err := errdefs.Refuse(errdefs.Infeasible, "Node didn't have enough capacity: %s, requested: %d, capacity: %d", r, need, most)
			err.Resource = string(r)
			return err
		}
	}
	if err := m.lacks(view, more, m.requested(view, wanted.UID)); err != nil {
		return errdefs.Refuse(errdefs.ResizeDeferred, "%s", err)
	}
	return nil
}

// Requested adds up what the pods of a view request, and counts them.
func (m *Manager) Requested(view *ledger.View) workload.Quantities { return m.requested(view, "") }

// requested leaves one pod out.
func (m *Manager) requested(view *ledger.View, except string) workload.Quantities {
	used, pods := view.Requests(m.cfg.Features, except)
	used[Pods] += int64(pods)
	return used
}

// outOf is the refusal. CPU is counted in milli-CPU, as the kubelet's message has
// it.
func outOf(r workload.Resource, need, used, have int64) *errdefs.Error {
	err := errdefs.Refuse(errdefs.OutOf(string(r)),
		"Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d", r, need, used, have)
	err.Resource = string(r)
	return err
}

// Guard is the node on the hint bus: it hands nothing out, and refuses in the second
// phase what does not fit.
type Guard struct{ *Manager }

var (
	_ hint.Validator = Guard{}
	_ hint.Explainer = Guard{}
	_ hint.Resizer   = Guard{}
)

// GuardName is the name of the node on the hint bus.
const GuardName = "node"

// Name implements hint.Member.
func (Guard) Name() string { return GuardName }

// Validate implements hint.Validator. A running pod requests nothing new, except in a resize: the node may have become
// too small for its pods, and this forbids no pod to move.
func (g Guard) Validate(_ context.Context, view *ledger.View, req hint.Request) error {
	switch {
	case !req.Running:
		return g.Fit(view, req.Pod)
	case req.Before != nil:
		return g.fitResize(view, req.Before, req.Pod)
	}
	return nil
}

// Explain lists what the node as a whole has too little of for the pod and the
// requests of the others. It does not explain single NUMA nodes.
func (g Guard) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	if nodes != view.Machine().NodeMask() {
		return nil
	}
	var lacked *errdefs.Error
	if !errors.As(g.Fit(view, req.Pod), &lacked) {
		return nil
	}
	resource := workload.Resource(lacked.Resource)
	of := func(p *workload.Pod) int64 {
		if resource == Pods {
			return 1
		}
		return max(workload.EffectiveRequest(p, g.cfg.Features, resource), 0)
	}
	need, have := of(req.Pod), g.allocatable[resource]
	if resource == Pods {
		have = g.pods
	}
	used := g.requested(view, req.Pod.UID)[resource]
	s := ledger.Shortage{Resource: lacked.Resource, Structural: need > have}
	s.Need, s.Free, s.Held = uint64(need), uint64(max(have-used, 0)), uint64(used)
	if resource == workload.CPU {
		wholeCPUs(&s, g.onShared(view, req.Pod.UID))
	}
	s.HeldByPods(view, func(p *ledger.Pod) uint64 {
		if p.UID() == req.Pod.UID {
			return 0
		}
		return uint64(of(&p.Pod))
	})
	return []ledger.Shortage{s}
}

// wholeCPUs turns milli-CPU into whole CPUs, as shortages have them: what is left is rounded down. Where a fraction decides, the text has
// it. onShared is the part of what is held that no map shows, since shared CPUs are free for exclusive use.
func wholeCPUs(s *ledger.Shortage, onShared int64) {
	var why []string
	if onShared > 0 {
		why = append(why, "of it "+workload.CPU.Text(onShared)+" on the shared CPUs, which a map shows as free")
	}
	if s.Need%1000 != 0 && (s.Need+999)/1000 == s.Free/1000+1 {
		why = append(why, fmt.Sprintf("counted in whole CPUs: %s is requested, and %s is left",
			workload.CPU.Text(int64(s.Need)), workload.CPU.Text(int64(s.Free))))
	}
	s.Why = strings.Join(why, "; ")
	s.Need, s.Free, s.Held = (s.Need+999)/1000, s.Free/1000, (s.Held+999)/1000
}

// onShared is the milli-CPU that pods request beyond their exclusive CPUs, without one pod.
func (g Guard) onShared(view *ledger.View, except string) (sum int64) {
	for pod := range view.Pods() {
		if pod.UID() == except {
			continue
		}
		own := int64(0)
		for i := range pod.Claims {
			if c := &pod.Claims[i]; c.CPUs.OfNode() {
				own += int64(c.CPUs.Set.Len()) * 1000
			}
		}
		sum += max(workload.EffectiveRequest(&pod.Pod, g.cfg.Features, workload.CPU)-own, 0)
	}
	return sum
}

// Resize implements hint.Resizer.
func (g Guard) Resize(_ context.Context, view *ledger.View, old, wanted *workload.Pod, _ hint.Widening) ([]ledger.Claim, error) {
	return nil, g.fitResize(view, old, wanted)
}
