package hintproxy

import (
	"context"
	"errors"
	"time"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/cpuset"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
)

// validating is the proxy of a provider that has announced to be a validator.
type validating struct{ *proxy }

var (
	_ hint.Validator = validating{}
	_ hint.Explainer = (*proxy)(nil)
	_ hint.Catalog   = (*proxy)(nil)
)

// provider is the proxy as the bus takes it.
func (p *proxy) provider() hint.Provider {
	if p.registration.Validates {
		return validating{p}
	}
	return p
}

// external returns the proxy behind a provider of the bus; nil if there is none.
func external(p hint.Member) *proxy {
	switch p := p.(type) {
	case *proxy:
		return p
	case validating:
		return p.proxy
	}
	return nil
}

// Resources returns the names that the provider has registered for.
func (p *proxy) Resources() []string { return p.registration.Resources }

// Validate shows the provider the whole plan for a pod that concerns it.
func (v validating) Validate(ctx context.Context, view *ledger.View, req hint.Request) error {
	p := v.proxy
	if !p.concerned(req) {
		return nil
	}
	m := &hintv1.ValidateRequest{}
	if pod, ok := view.Pod(req.Pod.UID); ok {
		m.Claims = convert.Claims(pod.Claims)
	}
	rc, err := p.remote("Validate", view, req, m)
	if err != nil {
		return err
	}
	_, err = hint.Call(ctx, rc, func(ctx context.Context) (struct{}, error) {
		whole := &hintv1.ValidateRequest{Question: p.question(view, req), Claims: m.GetClaims()}
		return ask(ctx, p, "Validate", func(ctx context.Context) (none struct{}, err error) {
			resp, err := p.client.Validate(ctx, whole)
			if err != nil {
				return none, err
			}
			if r := resp.GetRefusal(); r != nil {
				return none, p.refusal(r)
			}
			return none, nil
		})
	})
	if errors.Is(err, hint.ErrNotCalled) {
		return nil
	}
	return err
}

const (
	// explainTime bounds one explanation: nobody's pod depends on it.
	explainTime = 200 * time.Millisecond
	// explainRest is how long a provider that could not explain is not asked to.
	explainRest = 5 * time.Second
	// maxShortages bounds one explanation.
	maxShortages = 16
)

// Explain asks the provider, if it has announced that it can tell, what a request
// lacks. What it says in vain or against the rules counts as nothing, and neither
// as a failure of the provider: explanations are no part of an admission.
func (p *proxy) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	if !p.registration.Explains || !p.concerned(req) || !p.ready() || !p.talks() {
		return nil
	}
	ctx, cancel := p.parts.WithTimeout(context.Background(), min(explainTime, p.registration.Deadline))
	defer cancel()
	resp, err := p.client.Explain(ctx, &hintv1.ExplainRequest{Question: p.question(view, req), Nodes: convert.Mask(nodes)})
	if err != nil {
		p.mu.Lock()
		p.quiet = p.parts.Now().Add(explainRest)
		p.mu.Unlock()
		p.parts.Log.DebugContext(ctx, "provider could not explain", "provider", p.Name(), "error", err)
		return nil
	}
	var out []ledger.Shortage
	for _, s := range convert.ReadShortages(resp.GetShortages()) {
		if len(out) < maxShortages && p.believable(view, &s) {
			s.Why = clip(s.Why)
			out = append(out, s)
		}
	}
	return out
}

// talks reports whether the provider may be asked to explain.
func (p *proxy) talks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.parts.Now().Before(p.quiet)
}

// believable holds a shortage against what can be known of it: it is one, of a
// resource of the provider's, on nodes of the machine, held by pods that are here.
func (p *proxy) believable(view *ledger.View, s *ledger.Shortage) bool {
	// Lists of nodes look like lists of CPUs.
	list, err := cpuset.Parse(s.Nodes)
	if err != nil || !p.speaksOf(s.Resource) || s.Need <= s.Free || len(s.Holders) > maxShortages || s.MoreHolders < 0 {
		return false
	}
	machine := view.Machine().NodeMask()
	for id := range list.All() {
		if id >= numa.MaxNodes || !machine.Contains(id) {
			return false
		}
	}
	for _, h := range s.Holders {
		if _, ok := view.Pod(h.Pod); !ok {
			return false
		}
	}
	return true
}
