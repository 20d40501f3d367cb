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

// validating is the proxy of a provider with the capability to validate.
type validating struct{ *proxy }

var (
	_ hint.Validator = validating{}
	_ hint.Explainer = (*proxy)(nil)
	_ hint.Catalog   = (*proxy)(nil)
)

// provider returns the proxy in the form that the bus uses.
func (p *proxy) provider() hint.Provider {
	if p.registration.Validates {
		return validating{p}
	}
	return p
}

// external returns the proxy of a provider of the bus; nil for other providers.
func external(p hint.Member) *proxy {
	switch p := p.(type) {
	case *proxy:
		return p
	case validating:
		return p.proxy
	}
	return nil
}

// Resources returns the registered resources.
func (p *proxy) Resources() []string { return p.registration.Resources }

// Validate sends the provider the whole plan of a pod that concerns it.
func (v validating) Validate(ctx context.Context, view *ledger.View, req hint.Request) error {
	p := v.proxy
	if !p.concerned(req) {
		return nil
	}
	m := &hintv1.ValidateRequest{}
	if pod, ok := view.Pod(req.Pod.UID); ok {
		m.Claims = convert.Claims(pod.Claims)
	}
	q := p.question(view, req)
	rc, err := p.remote("Validate", q, m)
	if err != nil {
		return err
	}
	_, err = hint.Call(ctx, rc, func(ctx context.Context) (struct{}, error) {
		return put(ctx, p, "Validate", q, func(ctx context.Context, request *hintv1.HintRequest) (none struct{}, err error) {
			resp, err := p.client.Validate(ctx, &hintv1.ValidateRequest{Request: request, Claims: m.GetClaims()})
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
	// explainTime limits one explanation, because no pod depends on it.
	explainTime = 200 * time.Millisecond
	// explainRest is the pause after a failed explanation.
	explainRest = 5 * time.Second
	// maxShortages limits one explanation.
	maxShortages = 16
)

// Explain requests the shortages of a refused request, if the provider has the capability.
// Invalid answers are ignored. Failures do not count towards suspension, because
// explanations are not part of an admission.
func (p *proxy) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	if !p.registration.Explains || !p.concerned(req) || !p.ready() || !p.talks() {
		return nil
	}
	end, ok := p.explanations.begin(p.parts.Now)
	if !ok {
		return nil
	}
	defer end()
	ctx, cancel := p.parts.WithTimeout(context.Background(), min(explainTime, p.registration.Deadline))
	defer cancel()
	resp, err := p.client.Explain(ctx, &hintv1.ExplainRequest{Request: p.request(p.question(view, req)), NumaNodes: convert.Mask(nodes)})
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

// talks returns whether the pause after a failed explanation is over.
func (p *proxy) talks() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.parts.Now().Before(p.quiet)
}

// believable returns whether a shortage is valid: it has an amount, a resource of the
// provider, nodes of the machine, and holders that are in the ledger.
func (p *proxy) believable(view *ledger.View, s *ledger.Shortage) bool {
	// Lists of nodes have the format of lists of CPUs.
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
