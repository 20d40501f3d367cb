package hintprovider

import (
	"context"
	"errors"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// nowhere is the journal of a ledger without commits.
type nowhere struct{}

func (nowhere) Load(context.Context) ([]ledger.Entry, error) { return nil, nil }

func (nowhere) Commit(context.Context, uint64, []ledger.Entry) error {
	return errors.New("this ledger is only looked at")
}

func (nowhere) Close() error { return nil }

// learn takes the machine that berthd describes; an empty text says nothing new.
func (s *Server) learn(ctx context.Context, snapshot []byte) error {
	if len(snapshot) == 0 {
		return nil
	}
	m, err := machine.Load(snapshot)
	if err != nil {
		return err
	}
	l, _, err := ledger.Open(ctx, ledger.Options{Journal: nowhere{}, Rules: ledger.Rules{Machine: m}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base = l.View()
	return nil
}

// read turns a request into what the provider's methods take.
func (s *Server) read(q *hintv1.HintRequest) (*ledger.View, hint.Request, error) {
	if err := s.meant(q.GetProvider()); err != nil {
		return nil, hint.Request{}, err
	}
	req, err := readRequest(q.GetPod(), q.GetContainerName())
	if err != nil {
		return nil, hint.Request{}, err
	}
	view, err := s.view(q.GetAllocations(), req.Pod)
	return view, req, err
}

// view makes a view of allocations, and of a pod that is being admitted if there is
// one.
func (s *Server) view(allocations []*hintv1.ProviderAllocation, pod *workload.Pod) (*ledger.View, error) {
	s.mu.Lock()
	base := s.base
	s.mu.Unlock()
	if base == nil {
		return nil, errdefs.Preconditionf("berthd has not described the machine yet: Commit comes first on every connection")
	}
	records, err := convert.ReadAllocations("allocations", allocations)
	if err != nil {
		return nil, err
	}
	draft := ledger.NewDraft(base)
	if pod != nil {
		draft.PutPod(&ledger.Pod{Pod: *pod, QoS: pod.QoS})
	}
	for _, r := range records {
		if pod != nil && r.UID() == pod.UID {
			r.Pod, r.QoS = *pod, pod.QoS
		}
		draft.PutPod(r)
	}
	return draft.View(), nil
}
