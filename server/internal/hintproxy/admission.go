package hintproxy

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	hintv1 "github.com/berthd/berth/api/berth/hint/v1"
	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/api/convert"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// Limits of one answer. Providers with larger lists of node sets should answer with a rule.
const (
	maxAnswers = 64
	maxHints   = 1 << 12
	maxClaims  = 1 << 10
	// maxPayload limits the bytes of one claim, because the ledger stores them.
	maxPayload = 64 << 10
	// maxDeviceID is the longest id of a device, as for device plugins.
	maxDeviceID = 1024
)

// concerned returns whether a request contains a resource of the provider.
func (p *proxy) concerned(req hint.Request) bool {
	if len(p.registration.Resources) == 0 {
		return true
	}
	return slices.ContainsFunc(p.registration.Resources, func(name string) bool { return requested(req, "", name) })
}

// requested returns whether a request contains a resource. If container is set, only this
// container counts.
func requested(req hint.Request, container, resource string) bool {
	r := workload.Resource(resource)
	for i, c := range req.Pod.Walk() {
		about := (req.Container < 0 || i == req.Container) && (container == "" || c.Name == container)
		if about && (c.Limits[r] > 0 || c.Requests[r] > 0) {
			return true
		}
	}
	return false
}

// serves returns whether the provider has registered a resource. It may claim no other
// resource.
func (p *proxy) serves(resource string) bool {
	return slices.Contains(p.registration.Resources, resource)
}

// speaksOf returns whether the provider may give hints for a resource: a registered one,
// or, for a provider without resources, any resource that no plugin serves.
func (p *proxy) speaksOf(resource string) bool {
	if len(p.registration.Resources) == 0 {
		return workload.Resource(resource).IsExtended() && !p.parts.Plugin(resource)
	}
	return p.serves(resource)
}

// remote identifies a call by everything that its answer depends on: the message to the
// provider, and the pod's amounts of the provider's resources. The rest of the pod is the
// same for all calls of an admission.
func (p *proxy) remote(method string, q *question, more proto.Message) (hint.RemoteCall, error) {
	inputs := sha256.New()
	fmt.Fprintln(inputs, p.amounts(q.req))
	whole := &hintv1.HintRequest{Allocations: &hintv1.AllocationUpdate{Changed: q.all}, NumaNodes: q.nodes}
	for _, m := range []proto.Message{whole, more} {
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return hint.RemoteCall{}, p.unreadable(method, err)
		}
		inputs.Write(text)
	}
	return hint.RemoteCall{Party: p.Name(), Name: method + " for " + q.req.Owner().Container, Inputs: string(inputs.Sum(nil))}, nil
}

// amounts returns the amounts of the provider's resources that each container requests; all
// amounts for a provider without resources.
func (p *proxy) amounts(req hint.Request) (out []workload.Quantities) {
	for _, c := range req.Pod.Walk() {
		if len(p.registration.Resources) == 0 {
			out = append(out, c.Requests, c.Limits)
			continue
		}
		own := workload.Quantities{}
		for _, name := range p.registration.Resources {
			r := workload.Resource(name)
			own[r] = max(c.Requests[r], c.Limits[r])
		}
		out = append(out, own)
	}
	return out
}

// Hints requests topology hints from the provider. In a trial without a recorded answer,
// the provider is treated as having no preference.
func (p *proxy) Hints(ctx context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	if !p.concerned(req) {
		return nil, nil
	}
	q := p.question(view, req)
	rc, err := p.remote("GetHints", q, nil)
	if err != nil {
		return nil, err
	}
	answers, err := hint.Call(ctx, rc, func(ctx context.Context) ([]hint.ResourceAnswer, error) {
		return put(ctx, p, "GetHints", q, func(ctx context.Context, request *hintv1.HintRequest) ([]hint.ResourceAnswer, error) {
			resp, err := p.client.GetHints(ctx, &hintv1.GetHintsRequest{Request: request})
			if err != nil {
				return nil, err
			}
			return p.readAnswers(resp.GetTopologyHints(), view.Machine().NodeMask())
		})
	})
	if errors.Is(err, hint.ErrNotCalled) {
		hint.Skip(ctx, p.Name())
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return answers, nil
}

func (p *proxy) readAnswers(messages []*typesv1.TopologyHints, machine numa.Mask) ([]hint.ResourceAnswer, error) {
	if n := len(messages); n > maxAnswers {
		return nil, p.wrongAnswer("", "it gave %d answers, expected at most %d", n, maxAnswers)
	}
	for _, m := range messages {
		if !p.speaksOf(m.GetResource()) {
			return nil, p.wrongAnswer("", "it speaks of the resource %.80q, which is not its own", m.GetResource())
		}
		if n := len(m.GetHints()); n > maxHints {
			return nil, p.wrongAnswer(m.GetResource(), "it gave %d hints for %s, expected at most %d or a rule", n, m.GetResource(),
				maxHints)
		}
	}
	answers, err := convert.ReadAnswers("topology_hints", messages)
	if err != nil {
		return nil, p.unreadable("GetHints", err)
	}
	for i := range answers {
		answers[i].Reason = clip(answers[i].Reason)
	}
	slices.SortStableFunc(answers, func(a, b hint.ResourceAnswer) int { return cmp.Compare(a.Resource, b.Resource) })
	return answers, hint.CheckReply(hint.Reply{Provider: p.Name(), Answers: answers}, machine)
}

// Plan requests the claims for a request from the provider. In a trial without a recorded
// answer, it returns no claims and does not refuse.
func (p *proxy) Plan(ctx context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if !p.concerned(req) {
		return nil, nil
	}
	q := p.question(view, req)
	rc, err := p.remote("Plan", q, convert.Hint(&affinity))
	if err != nil {
		return nil, err
	}
	claims, err := hint.Call(ctx, rc, func(ctx context.Context) ([]ledger.Claim, error) {
		return put(ctx, p, "Plan", q, func(ctx context.Context, request *hintv1.HintRequest) ([]ledger.Claim, error) {
			resp, err := p.client.Plan(ctx, &hintv1.PlanRequest{Request: request, Affinity: convert.Hint(&affinity)})
			if err != nil {
				return nil, err
			}
			if r := resp.GetRefusal(); r != nil {
				return nil, p.refusal(r)
			}
			return p.readClaims(resp.GetPlan().GetClaims(), view.Machine().NodeMask(), req, affinity)
		})
	})
	if errors.Is(err, hint.ErrNotCalled) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return slices.Clone(claims), nil
}

func (p *proxy) readClaims(messages []*typesv1.Claim, machine numa.Mask, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if n := len(messages); n > maxClaims {
		return nil, p.wrongAnswer("", "it planned %d claims, expected at most %d", n, maxClaims)
	}
	claims, err := convert.ReadClaims("claims", messages)
	if err != nil {
		return nil, p.unreadable("Plan", err)
	}
	for i := range claims {
		c := &claims[i]
		switch {
		case !p.serves(c.Resource):
			return nil, p.wrongAnswer("", "it planned a claim on %.80q, which it has not registered for", c.Resource)
		case c.Owner.Pod == req.Pod.UID && !requested(req, c.Owner.Container, c.Resource):
			return nil, p.wrongAnswer(c.Resource, "it planned a claim on %s, which %s does not request", c.Resource, c.Owner)
		case len(c.Opaque) > maxPayload:
			return nil, p.wrongAnswer(c.Resource, "its claim on %s has %d bytes, expected at most %d", c.Resource, len(c.Opaque),
				maxPayload)
		}
		c.Affinity = nil
		if !affinity.Any || affinity.Preferred {
			c.Affinity = &affinity
		}
		if c.Devices == nil {
			continue
		}
		for _, d := range c.Devices.Devices {
			if d.ID == "" || len(d.ID) > maxDeviceID || strings.ContainsFunc(d.ID, unicode.IsControl) || !utf8.ValidString(d.ID) {
				return nil, p.wrongAnswer(c.Resource,
					"it planned a device %.80q: expected an id of 1 to %d bytes of text without control characters", d.ID, maxDeviceID)
			}
			if !d.Nodes.IsSubsetOf(machine) {
				return nil, p.wrongAnswer(c.Resource, "its device %q is on nodes %s, the machine has %s", d.ID, d.Nodes, machine)
			}
		}
	}
	return claims, hint.CheckPlan(p.Name(), req, claims)
}

// refusal converts a provider's refusal to an error.
func (p *proxy) refusal(m *hintv1.Refusal) error {
	reason := errdefs.UnexpectedAdmissionError
	if text := m.GetReason(); text != "" {
		if !isReason(text) {
			return p.wrongAnswer("", "its refusal has the reason %.80q: expected one word of letters and digits", text)
		}
		reason = errdefs.Reason(text)
	}
	err := errdefs.Refuse(reason, "provider %s: %s", p.Name(), clip(m.GetMessage()))
	err.Provider, err.Resource = p.Name(), clip(m.GetResource())
	return err
}

// isReason returns whether a text is valid as a pod's status reason.
func isReason(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return len(text) <= 63
}

// Prepare reserves the planned claims at the provider, for the time of a lease. Outstanding
// commits and aborts are sent first. A reservation prolongs the lease of the admission's earlier ones only if the provider still holds
// these: the answer must have arrived before that lease ends.
func (p *proxy) Prepare(ctx context.Context, admissionID string, req hint.Request, claims []ledger.Claim) (prepared []ledger.Claim,
	err error) {
	request := &hintv1.ReserveRequest{
		Provider: p.Name(), AdmissionId: admissionID,
		Pod: convert.Pod(req.Pod), ContainerName: req.Owner().Container,
		Claims: convert.Claims(claims), Lease: durationpb.New(p.config.Lease),
	}
	earlier, some := p.Lease(admissionID)
	err = p.call(ctx, "Reserve", func(ctx context.Context) error {
		if err := p.notify(ctx); err != nil {
			return err
		}
		start := p.parts.Now()
		p.note(admissionID, start, p.config.Lease, false)
		resp, err := p.client.Reserve(ctx, request)
		if err != nil {
			return err
		}
		if r := resp.GetRefusal(); r != nil {
			return p.refusal(r)
		}
		lease := p.config.Lease
		if given := resp.GetLease(); given != nil {
			lease = min(lease, given.AsDuration())
		}
		if lease <= 0 {
			return p.wrongAnswer("", "it reserves for %s", lease)
		}
		if took := p.parts.Now().Sub(start); took >= lease {
			return p.failed(errdefs.Deadline, "holds a reservation for %s, and answered Reserve after %s", lease, took)
		}
		p.note(admissionID, start, lease, true)
		prepared, err = p.readGrants(resp.GetReservation().GetGrants(), claims)
		return err
	})
	if err == nil && some && !p.parts.Now().Before(earlier.Expires) {
		err = hint.ExpiredLease(earlier)
	}
	if err != nil {
		return nil, err
	}
	return prepared, nil
}

// note records a reservation of an admission.
func (p *proxy) note(admissionID string, start time.Time, lease time.Duration, held bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	// A reservation that the provider held before stays held, even if this call fails.
	held = held || p.reservations[admissionID].held
	p.reservations[admissionID] = reservation{held: held, lease: ledger.Lease{
		ID: p.Name() + "/" + admissionID, Provider: p.Name(), AdmissionID: admissionID, Expires: start.Add(lease),
	}}
}

// readGrants adds the provider's grants to the claims.
func (p *proxy) readGrants(grants []*hintv1.Grant, claims []ledger.Claim) ([]ledger.Claim, error) {
	if len(grants) != len(claims) {
		return nil, p.wrongAnswer("", "it was given %d claims to reserve and granted %d", len(claims), len(grants))
	}
	done := slices.Clone(claims)
	for i, g := range grants {
		c := &done[i]
		if c.Devices == nil {
			if len(g.GetOpaque()) > 0 {
				c.Opaque = g.GetOpaque()
			}
		} else {
			if err := p.checkEdits(c.Resource, g.GetEdits()); err != nil {
				return nil, err
			}
			edits, err := proto.MarshalOptions{Deterministic: true}.Marshal(g.GetEdits())
			if err != nil {
				return nil, p.unreadable("Reserve", err)
			}
			c.Devices = &ledger.Devices{Devices: c.Devices.Devices, Response: edits}
		}
		if n := max(len(c.Opaque), proto.Size(g.GetEdits())); n > maxPayload {
			return nil, p.wrongAnswer(c.Resource, "its grant for %s has %d bytes, expected at most %d", c.Resource, n, maxPayload)
		}
	}
	return done, nil
}

// Abort releases the reservations of an admission at the provider. A failed delivery is
// repeated until the lease has expired.
func (p *proxy) Abort(ctx context.Context, admissionID string) {
	p.mu.Lock()
	r, reserved := p.reservations[admissionID]
	delete(p.reservations, admissionID)
	if reserved {
		p.aborts[admissionID] = r.lease.Expires
	}
	p.mu.Unlock()
	if !reserved {
		return
	}
	allowed, err := p.allowance(ctx, "Abort")
	if err == nil {
		began := p.parts.Now()
		err = p.within(ctx, "Abort", allowed.limit, p.notify)
		p.ends(allowed, began)
	}
	if err != nil {
		p.parts.Log.WarnContext(ctx, "provider was not notified of a failed admission yet", "provider", p.Name(), "admission",
			admissionID, "error", err)
		p.poke()
	}
}
