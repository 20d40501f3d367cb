package memory

import (
	"slices"

	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// allocation is what a pod requests and holds in one view.
type allocation struct {
	demand
	*table
	record *ledger.Pod // without claims if the view does not know the pod
}

func (m *Manager) allocation(view *ledger.View, pod *workload.Pod) *allocation {
	h := &allocation{demand: m.demand(pod), table: m.table(view)}
	record, ok := view.Pod(pod.UID)
	if !ok {
		record = &ledger.Pod{Pod: *pod}
	}
	h.record = record
	return h
}

// claims returns what a container holds, or with an empty name the pod as a
// whole, by resource.
func (h *allocation) claims(container string) []ledger.Claim {
	var out []ledger.Claim
	for i := range h.record.Claims {
		if c := &h.record.Claims[i]; c.Provider == Name && c.Owner.Container == container {
			out = append(out, *c)
		}
	}
	return out
}

// family is that of a container's request, with what is handed on to it, or what it may borrow.
func (h *allocation) containerFamily(req hint.Request, wants []want) *family {
	return h.table.family(wants, h.left(req, wants))
}

// left finds what the init containers before the container of a request leave to it, or what this may borrow.
func (h *allocation) left(req hint.Request, wants []want) []reusable {
	var out []reusable
	for _, claim := range h.lenders(req) {
		want := slices.IndexFunc(wants, func(w want) bool { return w.resource == claim.Resource })
		for _, b := range claim.Memory {
			nodes := b.Nodes.Intersect(h.m.nodes) // others are gone
			known := slices.ContainsFunc(out, func(r reusable) bool { return r.nodes == nodes && r.want == want })
			if want < 0 || known || nodes.IsEmpty() {
				continue
			}
			bytes := h.handedOn(req, claim.Resource, b.Nodes)
			out = append(out, reusable{nodes, want, int64(min(bytes.Total(), maxBytes))})
		}
	}
	return out
}

// lenders are the claims of the containers from which the container of a request may take memory, in the pod's order.
func (h *allocation) lenders(req hint.Request) []*ledger.Claim {
	type lender struct {
		at    int
		claim *ledger.Claim
	}
	var all []lender
	names := h.Pod.Names()
	for i := range h.record.Claims {
		c := &h.record.Claims[i]
		at := names.At(c.Owner.Container)
		if c.Provider != Name || at < 0 {
			continue
		}
		before := at < req.Container && h.Pod.Containers[at].Role.Feeds()
		if before || req.Borrows && (req.Below == "" || req.Below == c.Owner.Container) {
			all = append(all, lender{at, c})
		}
	}
	slices.SortStableFunc(all, func(a, b lender) int { return a.at - b.at })
	out := make([]*ledger.Claim, len(all))
	for i, l := range all {
		out[i] = l.claim
	}
	return out
}

// handedOn are the bytes that the container of a request may take over on exactly some nodes.
func (h *allocation) handedOn(req hint.Request, resource string, nodes numa.Mask) ledger.NodeBytes {
	if req.Borrows {
		return h.record.BorrowableMemory(req.Owner().Container, resource, nodes)
	}
	return h.record.ReusableMemory(req.Owner().Container, resource, nodes)
}

// claim makes the fact that an owner holds an amount on nodes. of are the bytes
// that it takes over there, free what it may take besides; what it takes is no
// longer free.
func (h *allocation) claim(container string, w want, nodes numa.Mask, of ledger.NodeBytes, free *amounts, affinity hint.Hint) ledger.Claim {
	return ledger.Claim{
		Owner:    ledger.Owner{Pod: h.Pod.UID, Container: container},
		Provider: Name, Resource: w.resource, Affinity: &affinity,
		Memory: []ledger.Block{block(w.bytes, nodes, of, free)},
	}
}

// block divides an amount among nodes: first what is taken over, then what is
// free, each from the lowest node up, as the kubelet counts it.
func block(bytes int64, nodes numa.Mask, of ledger.NodeBytes, free *amounts) ledger.Block {
	b := ledger.Block{Nodes: nodes, Bytes: uint64(bytes)}
	if nodes.Len() < 2 || bytes == 0 {
		return b
	}
	parts := make([]ledger.Part, 0, nodes.Len())
	rest := uint64(bytes)
	for id := range nodes.All() {
		n := min(of[id], rest)
		parts = append(parts, ledger.Part{Node: id, Bytes: n})
		rest -= n
	}
	for i := range parts {
		n := min(uint64(max(free[parts[i].Node], 0)), rest)
		parts[i].Bytes += n
		rest -= n
	}
	parts[len(parts)-1].Bytes += rest
	parts = slices.DeleteFunc(parts, func(p ledger.Part) bool { return p.Bytes == 0 })
	if lowest, _ := nodes.Lowest(); len(parts) > 1 || parts[0].Node != lowest {
		b.Parts = parts
	}
	return b
}
