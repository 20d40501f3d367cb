package hintprovider

import (
	"context"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// adapter is a Provider in the form of berthd's own providers.
type adapter struct{ Provider }

type (
	validating struct{ adapter }
	explaining struct{ adapter }
	both       struct{ adapter }
)

var (
	_ hint.Aborter         = adapter{}
	_ hintserver.Committer = adapter{}
	_ hint.Validator       = both{}
	_ hint.Explainer       = both{}
)

// adapt returns a hint.Provider with the optional methods that a Provider has. berthd calls
// Validate and Explain only of providers that have them.
func adapt(p Provider) hint.Provider {
	a := adapter{p}
	_, validates := p.(Validator)
	_, explains := p.(Explainer)
	switch {
	case validates && explains:
		return both{a}
	case validates:
		return validating{a}
	case explains:
		return explaining{a}
	}
	return a
}

func (a adapter) request(view *ledger.View, req hint.Request) *Request {
	return &Request{
		Pod: convert.Pod(req.Pod), ContainerName: req.Owner().Container,
		Allocations: convert.ProviderAllocations(view, a.Name()), NUMANodes: convert.Mask(view.Machine().NodeMask()),
	}
}

// Hints implements hint.Provider.
func (a adapter) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	answers, err := a.Provider.Hints(ctx, a.request(view, req))
	if err != nil {
		return nil, err
	}
	return convert.ReadAnswers("topology_hints", answers)
}

// Plan implements hint.Provider.
func (a adapter) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	claims, err := a.Provider.Plan(ctx, a.request(view, req), convert.Hint(&affinity))
	if err != nil {
		return nil, err
	}
	return convert.ReadClaims("claims", claims)
}

// Prepare implements hint.Preparer.
func (a adapter) Prepare(ctx context.Context, admissionID string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	r := &Request{Pod: convert.Pod(req.Pod), ContainerName: req.Owner().Container}
	grants, err := a.Provider.Prepare(ctx, admissionID, r, convert.Claims(claims))
	if err != nil {
		return nil, err
	}
	if len(grants) != len(claims) {
		return nil, errdefs.Internalf("provider %s granted %d of %d claims", a.Name(), len(grants), len(claims))
	}
	out := make([]ledger.Claim, len(claims))
	for i, c := range claims {
		switch g := grants[i]; {
		case c.Devices != nil:
			edits, err := hintserver.Edits(g.GetEdits())
			if err != nil {
				return nil, err
			}
			c.Devices = &ledger.Devices{Devices: c.Devices.Devices, Response: edits}
		case len(g.GetOpaque()) > 0:
			c.Opaque = g.GetOpaque()
		}
		out[i] = c
	}
	return out, nil
}

// Abort implements hint.Aborter.
func (a adapter) Abort(ctx context.Context, admissionID string) {
	if p, ok := a.Provider.(Aborter); ok {
		p.Abort(ctx, admissionID)
	}
}

// Committed implements hintserver.Committer.
func (a adapter) Committed(ctx context.Context, view *ledger.View) error {
	if p, ok := a.Provider.(Committer); ok {
		return p.Committed(ctx, convert.ProviderAllocations(view, a.Name()))
	}
	return nil
}

// validate calls the Validator that the provider is.
func (a adapter) validate(ctx context.Context, view *ledger.View, req hint.Request) error {
	var claims []*typesv1.Claim
	if pod, ok := view.Pod(req.Pod.UID); ok {
		claims = convert.Claims(pod.Claims)
	}
	return a.Provider.(Validator).Validate(ctx, a.request(view, req), claims)
}

// explain calls the Explainer that the provider is.
func (a adapter) explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	return convert.ReadShortages(a.Provider.(Explainer).Explain(a.request(view, req), convert.Mask(nodes)))
}

// Validate implements hint.Validator.
func (v validating) Validate(ctx context.Context, view *ledger.View, req hint.Request) error {
	return v.validate(ctx, view, req)
}

// Explain implements hint.Explainer.
func (e explaining) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	return e.explain(view, req, nodes)
}

// Validate implements hint.Validator.
func (b both) Validate(ctx context.Context, view *ledger.View, req hint.Request) error {
	return b.validate(ctx, view, req)
}

// Explain implements hint.Explainer.
func (b both) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	return b.explain(view, req, nodes)
}
