package hintproxy

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/hint/hinttest"
	"github.com/berthd/berth/managers/ledger"
)

// slotsOf is an honest provider of four slots on nodes 0, 0, 1 and 3, with a usage table.
func slotsOf(name string) *keeper {
	return &keeper{
		Slots:    hinttest.Slots{At: map[string]int{"a": 0, "b": 0, "c": 1, "d": 3}, Called: name},
		reserved: map[string]bool{}, held: map[string]string{},
	}
}

// keeper is a provider with a usage table.
type keeper struct {
	hinttest.Slots

	mu       sync.Mutex
	reserved map[string]bool   // admissions
	held     map[string]string // pods by admission
	decided  int               // commits heard of
}

func (k *keeper) Prepare(_ context.Context, id string, _ hintRequest, claims []ledger.Claim) ([]ledger.Claim, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reserved[id] = true
	return claims, nil
}

func (k *keeper) Abort(_ context.Context, id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.reserved, id)
}

func (k *keeper) Committed(_ context.Context, view *ledger.View) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.held = map[string]string{}
	for p := range view.Pods() {
		k.held[p.AdmissionID] = p.UID()
		delete(k.reserved, p.AdmissionID)
	}
	k.decided++
	return nil
}

// usage lists the admissions that have reserved something and the pods that hold
// something.
func (k *keeper) usage() (reserved, held []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for id := range k.reserved {
		reserved = append(reserved, id)
	}
	for _, uid := range k.held {
		held = append(held, uid)
	}
	slices.Sort(reserved)
	slices.Sort(held)
	return reserved, held
}

// script stands between a proxy and an honest server. Each method that is set is
// called in place of the honest one.
type script struct {
	hintv1.HintProviderServiceServer
	timeUp func()

	mu      sync.Mutex
	hints   func(context.Context, *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error)
	plan    func(context.Context, *hintv1.PlanRequest) (*hintv1.PlanResponse, error)
	reserve func(context.Context, *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error)
	commit  func(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse, error)
	abort   func(context.Context, *hintv1.AbortRequest) (*hintv1.AbortResponse, error)
	calls   []string
}

func (s *script) set(change func(*script)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// heard returns the calls so far.
func (s *script) heard() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func follow[Q, A any](ctx context.Context, s *script, name string, q Q, pick func() func(context.Context, Q) (A, error),
	honest func(context.Context, Q) (A, error)) (A, error) {
	s.mu.Lock()
	s.calls = append(s.calls, name)
	do := pick()
	s.mu.Unlock()
	if do == nil {
		do = honest
	}
	return do(ctx, q)
}

func (s *script) GetHints(ctx context.Context, q *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	return follow(ctx, s, "hints", q, func() func(context.Context, *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
		return s.hints
	}, s.HintProviderServiceServer.GetHints)
}

func (s *script) Plan(ctx context.Context, q *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
	return follow(ctx, s, "plan", q, func() func(context.Context, *hintv1.PlanRequest) (*hintv1.PlanResponse, error) { return s.plan },
		s.HintProviderServiceServer.Plan)
}

func (s *script) Reserve(ctx context.Context, q *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
	return follow(ctx, s, "reserve", q, func() func(context.Context, *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
		return s.reserve
	}, s.HintProviderServiceServer.Reserve)
}

func (s *script) Commit(ctx context.Context, q *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	return follow(ctx, s, "commit", q, func() func(context.Context, *hintv1.CommitRequest) (*hintv1.CommitResponse,
		error) {
		return s.commit
	}, s.HintProviderServiceServer.Commit)
}

func (s *script) Abort(ctx context.Context, q *hintv1.AbortRequest) (*hintv1.AbortResponse, error) {
	return follow(ctx, s, "abort", q,
		func() func(context.Context, *hintv1.AbortRequest) (*hintv1.AbortResponse, error) { return s.abort },
		s.HintProviderServiceServer.Abort)
}

// serveScript serves an honest provider behind a script at /name.
func (s *stage) serveScript(k *keeper) (sc *script, stop func()) {
	sc = &script{timeUp: s.timeUp, HintProviderServiceServer: hintserver.NewServer(k, s.clock.Now)}
	stop = s.endpoints.serve("/"+k.Name(), func(r grpc.ServiceRegistrar) { hintv1.RegisterHintProviderServiceServer(r, sc) })
	s.t.Cleanup(stop)
	return sc, stop
}
