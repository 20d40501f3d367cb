package main

import (
	"cmp"
	"context"
	"io"
	"io/fs"
	"slices"
	"strings"

	typesv1 "github.com/berthd/berth/api/berth/types/v1"
	"github.com/berthd/berth/clients/hintprovider/hintserver"
	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/numa"
	"github.com/berthd/berth/managers/workload"
)

// provider hands out the cards of a sysfs tree. Who holds which card is what the
// view says; the usage is apart from it, for what is reserved.
type provider struct {
	name     string
	resource workload.Resource
	sysfs    fs.FS
	usage    *usage
}

var (
	_ hint.Provider        = (*provider)(nil)
	_ hint.Preparer        = (*provider)(nil)
	_ hint.Aborter         = (*provider)(nil)
	_ hint.Explainer       = (*provider)(nil)
	_ hintserver.Committer = (*provider)(nil)
)

func newProvider(name, resource string, sysfs fs.FS, out io.Writer) *provider {
	return &provider{name: name, resource: workload.Resource(resource), sysfs: sysfs, usage: newUsage(out)}
}

// Name implements hint.Provider.
func (p *provider) Name() string { return p.name }

// wanted returns how many cards a container is to get, or all containers of a pod
// together: a card is not handed on from one container to the next.
func (p *provider) wanted(req hint.Request) int {
	n := 0
	for i, c := range req.Pod.Walk() {
		if req.Container < 0 || req.Container == i {
			n += int(c.Limits[p.resource])
		}
	}
	return n
}

// free returns the cards that no pod of the view holds.
func (p *provider) free(view *ledger.View) (free, all []card, err error) {
	if all, err = readCards(p.sysfs); err != nil {
		return nil, nil, err
	}
	taken := map[string]bool{}
	for c := range view.Claims() {
		if c.Provider == p.name && c.Devices != nil {
			for _, id := range c.Devices.IDs() {
				taken[id] = true
			}
		}
	}
	free = slices.DeleteFunc(slices.Clone(all), func(c card) bool { return taken[c.name] })
	return free, all, nil
}

// owned reports whether the request's owner has its cards already.
func (p *provider) owned(view *ledger.View, req hint.Request) bool {
	_, ok := view.Claim(req.Owner(), string(p.resource))
	return ok
}

// Hints answers by rule: any set of nodes will do that has enough free cards. Cards
// without a node count everywhere.
func (p *provider) Hints(_ context.Context, view *ledger.View, req hint.Request) ([]hint.ResourceAnswer, error) {
	n := p.wanted(req)
	if n == 0 || p.owned(view, req) {
		return nil, nil
	}
	free, all, err := p.free(view)
	if err != nil {
		return nil, err
	}
	answer := hint.ResourceAnswer{Resource: string(p.resource)}
	switch need := n - len(on(free, nowhere)); {
	case len(free) < n:
		answer.Kind = hint.Impossible
		answer.Reason = count(n) + " wanted, free are " + count(len(free)) + " of " + count(len(all))
	case need <= 0:
		answer.Kind = hint.NoPreference
	default:
		rule := &hint.Rule{
			Universe: view.Machine().NodeMask(), Need: uint64(need),
			PreferredSize: fewestNodes(all, n),
		}
		for _, c := range free {
			if c.node != nowhere {
				rule.Weights[c.node]++
			}
		}
		answer.Kind, answer.Rule = hint.ByRule, rule
	}
	return []hint.ResourceAnswer{answer}, nil
}

// on returns the cards of a node.
func on(cards []card, node int) []card {
	return slices.DeleteFunc(slices.Clone(cards), func(c card) bool { return c.node != node })
}

// fewestNodes returns on how many nodes n cards are at least, if all are free.
func fewestNodes(all []card, n int) int {
	var perNode [numa.MaxNodes]int
	for _, c := range all {
		if c.node == nowhere {
			n--
		} else {
			perNode[c.node]++
		}
	}
	slices.SortFunc(perNode[:], func(a, b int) int { return cmp.Compare(b, a) })
	nodes := 0
	for n > 0 && nodes < len(perNode) {
		n -= perNode[nodes]
		nodes++
	}
	return nodes
}

// Plan takes cards of the affinity's nodes first, then those without a node, then
// any: a policy that is content with less may have merged to nodes without enough.
func (p *provider) Plan(_ context.Context, view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	if req.Container < 0 {
		return p.planPod(view, req, affinity)
	}
	n := p.wanted(req)
	if n == 0 || p.owned(view, req) {
		return nil, nil
	}
	free, _, err := p.free(view)
	if err != nil {
		return nil, err
	}
	if len(free) < n {
		refusal := errdefs.Refuse(errdefs.OutOf(string(p.resource)), "%s wanted, %d free", count(n), len(free))
		refusal.Resource = string(p.resource)
		return nil, refusal
	}
	rank := func(c card) int {
		switch {
		case !affinity.Any && affinity.Nodes.Contains(c.node):
			return 0
		case c.node == nowhere:
			return 1
		}
		return 2
	}
	slices.SortStableFunc(free, func(a, b card) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.node, b.node))
	})
	return []ledger.Claim{p.claim(req, free[:n])}, nil
}

// planPod plans for one container after the other, each seeing what those before
// it got.
func (p *provider) planPod(view *ledger.View, req hint.Request, affinity hint.Hint) ([]ledger.Claim, error) {
	draft := ledger.NewDraft(view)
	var all []ledger.Claim
	for i := range req.Pod.Walk() {
		claims, err := p.Plan(context.Background(), draft.View(), hint.Request{Pod: req.Pod, Container: i}, affinity)
		if err != nil {
			return nil, err
		}
		draft.AddClaims(req.Pod.UID, claims...)
		all = append(all, claims...)
	}
	return all, nil
}

// Explain counts the cards of some nodes, those without a node included, and names
// who holds them.
func (p *provider) Explain(view *ledger.View, req hint.Request, nodes numa.Mask) []ledger.Shortage {
	n := p.wanted(req)
	free, all, err := p.free(view)
	if n == 0 || err != nil || p.owned(view, req) {
		return nil
	}
	far := func(c card) bool { return c.node != nowhere && !nodes.Contains(c.node) }
	free, all = slices.DeleteFunc(free, far), slices.DeleteFunc(all, far)
	if len(free) >= n {
		return nil
	}
	s := ledger.Shortage{
		Resource: string(p.resource), Nodes: nodes.String(), Need: uint64(n), Free: uint64(len(free)), Held: uint64(len(all) - len(free)),
		Structural: n > len(all),
	}
	s.HeldBy(view, func(c *ledger.Claim) (held uint64) {
		if c.Provider != p.name || c.Devices == nil {
			return 0
		}
		for _, id := range c.Devices.IDs() {
			if slices.ContainsFunc(all, func(c card) bool { return c.name == id }) {
				held++
			}
		}
		return held
	})
	return []ledger.Shortage{s}
}

func (p *provider) claim(req hint.Request, cards []card) ledger.Claim {
	devices := make([]ledger.Device, len(cards))
	for i, c := range cards {
		devices[i] = ledger.Device{ID: c.name, Nodes: c.mask(), Topology: c.node != nowhere}
	}
	slices.SortFunc(devices, func(a, b ledger.Device) int { return cmp.Compare(a.ID, b.ID) })
	return ledger.Claim{
		Owner: req.Owner(), Provider: p.name, Resource: string(p.resource),
		Devices: &ledger.Devices{Devices: devices},
	}
}

// Prepare reserves the cards and puts their names into the container's environment.
func (p *provider) Prepare(_ context.Context, admissionID string, req hint.Request, claims []ledger.Claim) ([]ledger.Claim, error) {
	done := slices.Clone(claims)
	for i := range done {
		c := &done[i]
		if c.Devices == nil {
			return nil, errdefs.Invalidf("the claim of %s on %s is not one on cards", c.Owner, c.Resource)
		}
		ids := c.Devices.IDs()
		edits, err := hintserver.Edits(&typesv1.ContainerEdits{
			Envs: map[string]string{p.variable(): strings.Join(ids, ",")},
		})
		if err != nil {
			return nil, err
		}
		if err := p.usage.reserve(admissionID, req.Owner().String(), ids); err != nil {
			return nil, err
		}
		c.Devices = &ledger.Devices{Devices: c.Devices.Devices, Response: edits}
	}
	return done, nil
}

// variable is the resource's name as an environment variable.
func (p *provider) variable() string {
	return strings.ToUpper(strings.Map(func(r rune) rune {
		if strings.ContainsRune("./-", r) {
			return '_'
		}
		return r
	}, string(p.resource)))
}

// Abort releases what is reserved for an admission.
func (p *provider) Abort(_ context.Context, admissionID string) { p.usage.abort(admissionID) }

// Committed takes over what pods hold.
func (p *provider) Committed(_ context.Context, view *ledger.View) error {
	held := map[string]string{}
	var admissions []string
	for pod := range view.Pods() {
		admissions = append(admissions, pod.AdmissionID)
		for _, c := range pod.Claims {
			if c.Devices == nil {
				continue
			}
			for _, id := range c.Devices.IDs() {
				held[id] = c.Owner.String()
			}
		}
	}
	p.usage.commit(held, admissions)
	return nil
}
