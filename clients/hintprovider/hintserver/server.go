package hintserver

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Committer is a provider with a usage table of its own. One without needs no more than the
// view that its methods are given.
type Committer interface {
	// Committed gets everything that pods hold of the provider: every claim of the
	// view, with the record's AdmissionID. What was reserved for these admissions is
	// theirs now, and what was given to other pods is free. It is called on every
	// connection first and whenever something has changed, again and again until
	// it returns nil.
	Committed(ctx context.Context, view *ledger.View) error
}

// Server answers berthd's calls with a provider. It serves Abort, Validate and
// Explain too where the provider is a hint.Aborter, hint.Validator, hint.Explainer.
type Server struct {
	hintv1.UnimplementedHintProviderServiceServer

	provider hint.Provider
	now      func() time.Time
	changed  chan struct{} // holds one: leases have changed

	usage sync.Mutex // held over calls that change the provider's usage

	mu   sync.Mutex
	base *ledger.View // guarded by mu: the machine without pods; nil before the first Commit
	// snapshot is the description of base. guarded by mu
	snapshot []byte
	lists    []list               // guarded by mu: the newest lists of allocations, oldest first
	leases   map[string]time.Time // guarded by mu: ends by admission
}

// NewServer makes a server. now is the clock of its leases: time.Now.
func NewServer(p hint.Provider, now func() time.Time) *Server {
	return &Server{provider: p, now: now, changed: make(chan struct{}, 1), leases: map[string]time.Time{}}
}

// Register adds the service to a gRPC server.
func (s *Server) Register(r grpc.ServiceRegistrar) { hintv1.RegisterHintProviderServiceServer(r, s) }

// GetHints implements HintProviderService.
func (s *Server) GetHints(ctx context.Context, m *hintv1.GetHintsRequest) (*hintv1.GetHintsResponse, error) {
	view, req, err := s.read(m.GetRequest())
	if err != nil {
		return nil, toStatus(err)
	}
	answers, err := s.provider.Hints(ctx, view, req)
	if err != nil {
		return nil, toStatus(err)
	}
	return &hintv1.GetHintsResponse{TopologyHints: convert.GivenAnswers(answers)}, nil
}

// Plan implements HintProviderService.
func (s *Server) Plan(ctx context.Context, m *hintv1.PlanRequest) (*hintv1.PlanResponse, error) {
	view, req, err := s.read(m.GetRequest())
	if err != nil {
		return nil, toStatus(err)
	}
	affinity, err := convert.ReadHint("affinity", m.GetAffinity())
	if err != nil {
		return nil, toStatus(err)
	}
	claims, err := s.provider.Plan(ctx, view, req, affinity)
	if errdefs.ClassOf(err) == errdefs.Refused {
		return &hintv1.PlanResponse{Outcome: &hintv1.PlanResponse_Refusal{Refusal: refusal(err)}}, nil
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return &hintv1.PlanResponse{Outcome: &hintv1.PlanResponse_Plan{Plan: &hintv1.Plan{Claims: convert.Claims(claims)}}}, nil
}

// Reserve implements HintProviderService.
func (s *Server) Reserve(ctx context.Context, m *hintv1.ReserveRequest) (*hintv1.ReserveResponse, error) {
	if err := s.meant(m.GetProvider()); err != nil {
		return nil, toStatus(err)
	}
	req, err := readRequest(m.GetPod(), m.GetContainerName())
	if err != nil {
		return nil, toStatus(err)
	}
	claims, err := convert.ReadClaims("claims", m.GetClaims())
	if err != nil {
		return nil, toStatus(err)
	}
	s.usage.Lock()
	defer s.usage.Unlock()
	s.abortExpired()
	// Whatever Prepare has done until it fails is released when this ends.
	s.hold(m.GetAdmissionId(), m.GetLease().AsDuration())
	prepared := claims
	if p, ok := s.provider.(hint.Preparer); ok {
		if prepared, err = p.Prepare(ctx, m.GetAdmissionId(), req, claims); err == nil {
			err = hint.CheckPrepared(s.provider.Name(), claims, prepared)
		}
	}
	if errdefs.ClassOf(err) == errdefs.Refused {
		return &hintv1.ReserveResponse{Outcome: &hintv1.ReserveResponse_Refusal{Refusal: refusal(err)}}, nil
	}
	if err != nil {
		return nil, toStatus(err)
	}
	out := &hintv1.Reservation{Grants: make([]*hintv1.Grant, len(prepared))}
	for i, c := range prepared {
		g := &hintv1.Grant{Opaque: c.Opaque}
		if c.Devices != nil {
			if g.Edits, err = readEdits(c.Devices.Response); err != nil {
				return nil, toStatus(err)
			}
		}
		out.Grants[i] = g
	}
	return &hintv1.ReserveResponse{Outcome: &hintv1.ReserveResponse_Reservation{Reservation: out}}, nil
}

// Commit implements HintProviderService.
func (s *Server) Commit(ctx context.Context, m *hintv1.CommitRequest) (*hintv1.CommitResponse, error) {
	if err := s.meant(m.GetProvider()); err != nil {
		return nil, toStatus(err)
	}
	if err := s.learn(ctx, m.GetMachineSnapshotJson()); err != nil {
		return nil, toStatus(err)
	}
	view, err := s.view(m.GetAllocations(), nil)
	if err != nil {
		return nil, toStatus(err)
	}
	s.remember(m.GetAllocations(), view)
	if m.GetPartial() {
		return &hintv1.CommitResponse{}, nil
	}
	s.usage.Lock()
	defer s.usage.Unlock()
	if c, ok := s.provider.(Committer); ok {
		if err := c.Committed(ctx, view); err != nil {
			return nil, toStatus(err)
		}
	}
	for p := range view.Pods() {
		s.release(p.AdmissionID)
	}
	for _, id := range m.GetCommittedAdmissions() {
		s.abortIf(func(admission string, _ time.Time) bool { return admission == id })
	}
	s.abortExpired()
	if m.GetDiscardReservations() {
		s.abortAll()
	}
	return &hintv1.CommitResponse{}, nil
}

// Validate implements HintProviderService for a provider that is a hint.Validator.
// Its view has what all providers have planned for the pod.
func (s *Server) Validate(ctx context.Context, m *hintv1.ValidateRequest) (*hintv1.ValidateResponse, error) {
	v, ok := s.provider.(hint.Validator)
	if !ok {
		return nil, toStatus(errdefs.Unsupportedf("provider %s validates nothing", s.provider.Name()))
	}
	view, req, err := s.read(m.GetRequest())
	if err != nil {
		return nil, toStatus(err)
	}
	claims, err := convert.ReadPlan("claims", m.GetClaims())
	if err != nil {
		return nil, toStatus(err)
	}
	draft := ledger.NewDraft(view)
	draft.AddClaims(req.Pod.UID, claims...)
	err = v.Validate(ctx, draft.View(), req)
	if errdefs.ClassOf(err) == errdefs.Refused {
		return &hintv1.ValidateResponse{Refusal: refusal(err)}, nil
	}
	if err != nil {
		return nil, toStatus(err)
	}
	return &hintv1.ValidateResponse{}, nil
}

// Explain implements HintProviderService for a provider that is a hint.Explainer.
func (s *Server) Explain(_ context.Context, m *hintv1.ExplainRequest) (*hintv1.ExplainResponse, error) {
	x, ok := s.provider.(hint.Explainer)
	if !ok {
		return nil, toStatus(errdefs.Unsupportedf("provider %s explains nothing", s.provider.Name()))
	}
	view, req, err := s.read(m.GetRequest())
	if err != nil {
		return nil, toStatus(err)
	}
	var vs errdefs.Violations
	nodes := convert.ReadMask("numa_nodes", m.GetNumaNodes(), &vs)
	if err := vs.Err("request"); err != nil {
		return nil, toStatus(err)
	}
	return &hintv1.ExplainResponse{Shortages: convert.Shortages(x.Explain(view, req, nodes))}, nil
}

// Abort implements HintProviderService.
func (s *Server) Abort(ctx context.Context, m *hintv1.AbortRequest) (*hintv1.AbortResponse, error) {
	if err := s.meant(m.GetProvider()); err != nil {
		return nil, toStatus(err)
	}
	s.usage.Lock()
	defer s.usage.Unlock()
	s.release(m.GetAdmissionId())
	s.abort(ctx, m.GetAdmissionId())
	return &hintv1.AbortResponse{}, nil
}

// meant refuses calls for another provider: the endpoint was registered under a
// wrong name.
func (s *Server) meant(provider string) error {
	if name := s.provider.Name(); provider != name {
		return errdefs.NotFoundf("this is provider %s, not %.80q", name, provider)
	}
	return nil
}

// Edits puts what a runtime has to do for a container into the form that a claim on
// devices keeps it in, for Prepare.
func Edits(e *typesv1.ContainerEdits) ([]byte, error) {
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
	if err != nil {
		return nil, errdefs.Internalf("write what the runtime has to do: %w", err)
	}
	return text, nil
}

func readEdits(text []byte) (*typesv1.ContainerEdits, error) {
	e := new(typesv1.ContainerEdits)
	if err := proto.Unmarshal(text, e); err != nil {
		return nil, errdefs.Internalf("Prepare has put something into a claim that Edits has not made: %w", err)
	}
	return e, nil
}

// readRequest finds the container that a request is about.
func readRequest(pod *typesv1.Pod, container string) (hint.Request, error) {
	p, err := convert.SentPod(pod)
	if err != nil {
		return hint.Request{}, err
	}
	if container == "" {
		return hint.Request{Pod: &p, Container: -1}, nil
	}
	for i, c := range p.Walk() {
		if c.Name == container {
			return hint.Request{Pod: &p, Container: i}, nil
		}
	}
	return hint.Request{}, errdefs.Invalidf("the pod has no container %.80q", container)
}
