package hinttest

import (
	"context"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// SlotResource names what Slots hands out.
const SlotResource workload.Resource = "example.com/slot"

// Slots is a small provider that satisfies the contract, for tests of code that uses providers.
// It allocates slots, each near one NUMA node.
type Slots struct {
	// At has the node of each slot by id.
	At map[string]int
	// Called is Name; empty means "slots".
	Called string
}

// Name returns Called, or "slots".
func (s *Slots) Name() string {
	if s.Called == "" {
		return "slots"
	}
	return s.Called
}

// wanted is the number of requested slots.
func wanted(req hint.Request) int {
	if req.Container < 0 {
		return int(workload.PodTotal(req.Pod, func(c *workload.Container) int64 { return c.Requests[SlotResource] }))
	}
	return int(req.Pod.Containers[req.Container].Requests[SlotResource])
}

// free returns the slots that no pod holds, on the given nodes, by id.
func (s *Slots) free(view *ledger.View, nodes numa.Mask) []string {
	taken := map[string]bool{}
	for c := range view.Claims() {
		if c.Provider == s.Name() {
			for _, id := range c.Devices.IDs() {
				taken[id] = true
			}
		}
	}
	var ids []string
	for id, node := range s.At {
		if !taken[id] && nodes.Contains(node) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Hints returns all node sets with enough free slots. Sets of the size that would suffice with
// all slots free are preferred.
func (s *Slots) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	n := wanted(req)
	if n == 0 {
		return nil, nil
	}
	answer := hint.Answer{Kind: hint.Impossible, Reason: "too few free slots"}
	perNode := map[int]int{}
	for _, node := range s.At {
		perNode[node]++
	}
	least := numa.MaxNodes
	for m := range numa.Subsets(view.Machine().NodeMask()) {
		all := 0
		for id := range m.All() {
			all += perNode[id]
		}
		if all >= n {
			least = min(least, m.Len())
		}
		if len(s.free(view, m)) >= n {
			answer.Kind, answer.Reason = hint.Options, ""
			answer.Hints = append(answer.Hints, hint.Hint{Nodes: m, Preferred: m.Len() == least})
		}
	}
	return []hint.ResourceAnswer{{Resource: string(SlotResource), Answer: answer}}, nil
}

// Plan takes the free slots with the lowest ids within the affinity.
func (s *Slots) Plan(_ context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	n := wanted(req)
	if n == 0 || req.Container < 0 {
		return nil, nil
	}
	nodes := affinity.Nodes
	if affinity.Any {
		nodes = view.Machine().NodeMask()
	}
	ids := s.free(view, nodes)
	if len(ids) < n {
		return nil, errdefs.Refuse(errdefs.UnexpectedAdmissionError, "%d slots are wanted on nodes %s, %d are free", n, nodes, len(ids))
	}
	claim := ledger.Claim{
		Owner: req.Owner(), Provider: s.Name(), Resource: string(SlotResource), Affinity: &affinity,
		Devices: &ledger.Devices{},
	}
	for _, id := range ids[:n] {
		claim.Devices.Devices = append(claim.Devices.Devices, ledger.Device{ID: id, Nodes: numa.Of(s.At[id]), Topology: true})
	}
	return []ledger.Claim{claim}, nil
}

// Prepare writes the admission into the claims.
func (s *Slots) Prepare(_ context.Context, admissionID string, _ hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	out := slices.Clone(claims)
	for i := range out {
		d := *out[i].Devices
		d.Response = []byte(admissionID)
		out[i].Devices = &d
	}
	return out, nil
}
