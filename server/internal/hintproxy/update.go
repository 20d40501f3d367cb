package hintproxy

import (
	"cmp"
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
)

// question is a request to the provider in the form of its messages. It stays valid after the
// admission has ended.
type question struct {
	req hint.Request
	// machine is the one of the view.
	machine *machine.Topology

	pod   *typesv1.Pod
	all   []*hintv1.ProviderAllocation // of the view, with reservations and plans
	nodes *typesv1.NUMANodeSet
}

func (p *proxy) question(view *ledger.View, req hint.Request) *question {
	return &question{
		req: req, machine: view.Machine(), pod: convert.Pod(req.Pod),
		all: convert.ProviderAllocations(view, p.Name()), nodes: convert.Mask(view.Machine().NodeMask()),
	}
}

// request returns the message of a question, based on the list that the provider has.
func (p *proxy) request(q *question) *hintv1.HintRequest {
	p.mu.Lock()
	acknowledged, sequence := p.list()
	p.mu.Unlock()
	return p.based(q, acknowledged, sequence)
}

// whole returns the message of a question with all allocations.
func (p *proxy) whole(q *question) *hintv1.HintRequest { return p.based(q, nil, 0) }

func (p *proxy) based(q *question, acknowledged []*hintv1.ProviderAllocation, sequence uint64) *hintv1.HintRequest {
	return &hintv1.HintRequest{
		Provider: p.Name(), Pod: q.pod, ContainerName: q.req.Owner().Container,
		Allocations: difference(acknowledged, sequence, q.all), NumaNodes: q.nodes,
	}
}

// list returns the list of allocations that the provider has on this connection, and its
// number; 0 for none. mu must be held.
func (p *proxy) list() ([]*hintv1.ProviderAllocation, uint64) {
	if !p.introduced || p.sequence == 0 {
		return nil, 0
	}
	return p.acknowledged, p.sequence
}

// put makes a call with a question. A provider that does not know the machine yet learns it first. A
// provider without the list of the question gets
// everything, and then the question once more. It keeps few lists: where many registrations at
// the same time have displaced this one again, the question itself has everything.
func put[T any](ctx context.Context, p *proxy, method string, q *question,
	call func(context.Context, *hintv1.HintRequest) (T, error)) (T, error) {
	return callProvider(ctx, p, method, func(ctx context.Context) (T, error) {
		if !p.knows(q.machine) {
			if err := p.notify(ctx); err != nil {
				return *new(T), err
			}
		}
		request := p.request(q)
		answer, err := call(ctx, request)
		if status.Code(err) != codes.FailedPrecondition {
			return answer, err
		}
		p.forget(request.GetAllocations().GetBaseSequence())
		if err := p.notify(ctx); err != nil {
			return *new(T), err
		}
		if answer, err = call(ctx, p.request(q)); status.Code(err) != codes.FailedPrecondition {
			return answer, err
		}
		return call(ctx, p.whole(q))
	})
}

// forget records that the provider does not have a list. The next Commit has everything.
func (p *proxy) forget(sequence uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sequence == sequence {
		p.acknowledged, p.sequence, p.again = nil, 0, true
	}
}

// difference returns the update from the list with a sequence number to another list. Both
// are in order of pod uids.
func difference(from []*hintv1.ProviderAllocation, sequence uint64, to []*hintv1.ProviderAllocation) *hintv1.AllocationUpdate {
	u := &hintv1.AllocationUpdate{BaseSequence: sequence}
	for len(from) > 0 || len(to) > 0 {
		var order int
		switch {
		case len(to) == 0:
			order = -1
		case len(from) == 0:
			order = 1
		default:
			order = cmp.Compare(from[0].GetPodUid(), to[0].GetPodUid())
		}
		switch {
		case order < 0:
			u.RemovedPodUids = append(u.RemovedPodUids, from[0].GetPodUid())
			from = from[1:]
		case order > 0:
			u.Changed = append(u.Changed, to[0])
			to = to[1:]
		default:
			if !proto.Equal(from[0], to[0]) {
				u.Changed = append(u.Changed, to[0])
			}
			from, to = from[1:], to[1:]
		}
	}
	return u
}

// maxPart is the size of the allocations in one Commit, unless a single pod has more.
const maxPart = 1 << 20

// parts divides an update, and numbers the parts from next on. Each part is based on the one
// before.
func parts(u *hintv1.AllocationUpdate, next uint64) []*hintv1.AllocationUpdate {
	part := &hintv1.AllocationUpdate{Sequence: next, BaseSequence: u.GetBaseSequence(), RemovedPodUids: u.GetRemovedPodUids()}
	out := []*hintv1.AllocationUpdate{part}
	size := 0
	for _, a := range u.GetChanged() {
		if n := proto.Size(a); size > 0 && size+n > maxPart {
			part = &hintv1.AllocationUpdate{Sequence: part.GetSequence() + 1, BaseSequence: part.GetSequence()}
			out, size = append(out, part), 0
		}
		size += proto.Size(a)
		part.Changed = append(part.Changed, a)
	}
	return out
}
