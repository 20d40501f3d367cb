package hintserver

import (
	"bytes"
	"context"
	"errors"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/journal"
	"github.com/berthd/berth/managers/machine"
	"github.com/berthd/berth/managers/workload"
)

// nowhere is the journal of a ledger without commits.
type nowhere struct{}

func (nowhere) Load(context.Context) ([]journal.Entry, error) { return nil, nil }

func (nowhere) Commit(context.Context, uint64, []journal.Entry) error {
	return errors.New("this ledger is only looked at")
}

func (nowhere) Close() error { return nil }

// learn takes the machine that berthd describes; an empty text is no change. Lists are of
// one machine, so another machine makes them invalid.
func (s *Server) learn(ctx context.Context, snapshot []byte) error {
	s.mu.Lock()
	known := len(snapshot) == 0 || bytes.Equal(snapshot, s.snapshot)
	s.mu.Unlock()
	if known {
		return nil
	}
	m, err := machine.Load(snapshot)
	if err != nil {
		return err
	}
	l, _, err := journal.Open(ctx, journal.Options{Journal: nowhere{}, Rules: ledger.Rules{Machine: m}})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base, s.lists, s.snapshot = l.View(), nil, bytes.Clone(snapshot)
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

// list is a list of allocations that berthd has sent.
type list struct {
	sequence uint64
	view     *ledger.View
}

// keptLists is how many lists are kept. Requests that were sent before a Commit are based on
// an older list, and after a new registration berthd has two connections for a while. The
// views share their data.
const keptLists = 8

// remember keeps the list of an update.
func (s *Server) remember(u *hintv1.AllocationUpdate, view *ledger.View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists = append(s.lists, list{u.GetSequence(), view})
	s.lists = s.lists[max(0, len(s.lists)-keptLists):]
}

// basis returns the list that an update is based on.
func (s *Server) basis(u *hintv1.AllocationUpdate) (*ledger.View, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.base == nil {
		return nil, errdefs.Preconditionf("berthd has not described the machine yet: Commit comes first on every connection")
	}
	if u.GetBaseSequence() == 0 {
		return s.base, nil
	}
	for _, l := range s.lists {
		if l.sequence == u.GetBaseSequence() {
			return l.view, nil
		}
	}
	return nil, errdefs.Preconditionf("there is no list of allocations with sequence %d: all allocations have to be sent",
		u.GetBaseSequence())
}

// view makes a view of the allocations after an update, and of a pod that is being admitted
// if there is one.
func (s *Server) view(u *hintv1.AllocationUpdate, pod *workload.Pod) (*ledger.View, error) {
	base, err := s.basis(u)
	if err != nil {
		return nil, err
	}
	records, err := convert.ReadAllocations("allocations.changed", u.GetChanged())
	if err != nil {
		return nil, err
	}
	draft := ledger.NewDraft(base)
	for _, uid := range u.GetRemovedPodUids() {
		draft.RemovePod(uid)
	}
	for _, r := range records {
		draft.PutPod(r)
	}
	if pod != nil {
		record := &ledger.Pod{}
		if have, ok := draft.View().Pod(pod.UID); ok {
			*record = *have
		}
		record.Pod, record.QoS = *pod, pod.QoS
		draft.PutPod(record)
	}
	return draft.View(), nil
}
