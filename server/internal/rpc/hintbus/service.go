// Package hintbus serves berth.hint.v1's HintBusService: external providers register, and
// callers with the role read list the providers of the bus.
package hintbus

import (
	"context"
	"fmt"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/server/internal/hintproxy"
)

// Registry manages the providers; *hintproxy.Registry is the only implementation.
type Registry interface {
	Register(ctx context.Context, o ledger.ExternalProvider) error
	Unregister(ctx context.Context, name string) error
	List() []hintproxy.Status
}

// Ledger gives the current view.
type Ledger interface{ View() *ledger.View }

type service struct {
	hintv1.UnimplementedHintBusServiceServer
	registry Registry
	ledger   Ledger
}

// New makes the service.
func New(r Registry, l Ledger) hintv1.HintBusServiceServer {
	return &service{registry: r, ledger: l}
}

// Register implements HintBusService.
func (s *service) Register(ctx context.Context, req *hintv1.RegisterRequest) (*hintv1.RegisterResponse, error) {
	vs := convert.Names("provider", req.GetProvider(), "endpoint", req.GetEndpoint())
	switch req.GetMode() {
	case hintv1.Mode_MODE_REQUIRED, hintv1.Mode_MODE_ADVISORY:
	default:
		vs.Addf("mode", "expected REQUIRED or ADVISORY")
	}
	for i, c := range req.GetCapabilities() {
		if c != hintv1.Capability_CAPABILITY_VALIDATE && c != hintv1.Capability_CAPABILITY_EXPLAIN {
			vs.Addf(fmt.Sprintf("capabilities[%d]", i), "expected VALIDATE or EXPLAIN")
		}
	}
	if d := req.GetDeadline(); d != nil && (d.CheckValid() != nil || d.AsDuration() <= 0) {
		vs.Addf("deadline", "expected a positive duration")
	}
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	err := s.registry.Register(ctx, ledger.ExternalProvider{
		Name: req.GetProvider(), Endpoint: req.GetEndpoint(),
		Required: req.GetMode() == hintv1.Mode_MODE_REQUIRED,
		Deadline: req.GetDeadline().AsDuration(), Index: int(req.GetIndex()),
		Resources: req.GetResources(),
		Validates: slices.Contains(req.GetCapabilities(), hintv1.Capability_CAPABILITY_VALIDATE),
		Explains:  slices.Contains(req.GetCapabilities(), hintv1.Capability_CAPABILITY_EXPLAIN),
	})
	if err != nil {
		return nil, err
	}
	return &hintv1.RegisterResponse{Revision: s.ledger.View().Revision()}, nil
}

// Unregister implements HintBusService.
func (s *service) Unregister(ctx context.Context, req *hintv1.UnregisterRequest) (*hintv1.UnregisterResponse, error) {
	vs := convert.Names("provider", req.GetProvider())
	if err := vs.Err("request"); err != nil {
		return nil, err
	}
	if err := s.registry.Unregister(ctx, req.GetProvider()); err != nil {
		return nil, err
	}
	return &hintv1.UnregisterResponse{Revision: s.ledger.View().Revision()}, nil
}

// states are the message form of states.
var states = map[hintproxy.State]hintv1.State{
	hintproxy.Connected: hintv1.State_STATE_CONNECTED,
	hintproxy.Away:      hintv1.State_STATE_AWAY,
	hintproxy.Suspended: hintv1.State_STATE_SUSPENDED,
}

// ListProviders implements HintBusService.
func (s *service) ListProviders(context.Context, *hintv1.ListProvidersRequest) (*hintv1.ListProvidersResponse, error) {
	out := &hintv1.ListProvidersResponse{}
	for _, st := range s.registry.List() {
		out.Providers = append(out.Providers, provider(st))
	}
	return out, nil
}

func provider(s hintproxy.Status) *hintv1.Provider {
	m := &hintv1.Provider{
		Name: s.Name, BuiltIn: s.BuiltIn, Mode: hintv1.Mode_MODE_ADVISORY,
		Endpoint: s.Endpoint, Resources: s.Resources, Index: int32(s.Index),
		State: states[s.State], Message: s.Message,
	}
	if s.Required {
		m.Mode = hintv1.Mode_MODE_REQUIRED
	}
	if s.Validates {
		m.Capabilities = append(m.Capabilities, hintv1.Capability_CAPABILITY_VALIDATE)
	}
	if s.Explains {
		m.Capabilities = append(m.Capabilities, hintv1.Capability_CAPABILITY_EXPLAIN)
	}
	if s.Deadline != 0 {
		m.Deadline = durationpb.New(s.Deadline)
	}
	for _, l := range s.Leases {
		m.Leases = append(m.Leases, &hintv1.Lease{AdmissionId: l.AdmissionID, ExpireTime: timestamppb.New(l.Expires)})
	}
	return m
}
