package admission

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

const (
	// offered is how many pods are named one by one, each of which would do.
	offered = 3
	// largestSet is how many pods at most a suggestion removes together.
	largestSet = 6
	// leftForRemovals are the dry runs that the search among requests leaves.
	leftForRemovals = 24
)

// search looks for changes that would make a rejected pod fit. It offers nothing
// that a dry run has not shown, and makes no remote call: where a plugin or provider
// gave no answer to this admission, the built-in choice stands for it.
type search struct {
	*Engine
	ctx       context.Context
	c         *candidate
	shortages []ledger.Shortage
	until     time.Time
	left      int // dry runs
	tried     int
	found     []ledger.Suggestion
}

// suggest returns changes that would make a rejected pod fit, and how many were
// tried.
func (e *Engine) suggest(ctx context.Context, c *candidate, shortages []ledger.Shortage) ([]ledger.Suggestion, int) {
	s := &search{
		Engine: e, ctx: ctx, c: c, shortages: shortages,
		until: e.Now().Add(e.TryTime), left: max(e.Tries, 0),
	}
	kept := min(s.left/2, leftForRemovals)
	s.left -= kept
	s.requests()
	s.left += kept
	s.policies()
	s.removals()
	return s.found, s.tried
}

// change is what one dry run tries; what is empty stays as it is.
type change struct {
	pod     *workload.Pod
	policy  Policy
	without []*ledger.Pod
}

// fits tries a change.
func (s *search) fits(ch change) bool {
	if s.left <= 0 || s.ctx.Err() != nil || !s.Now().Before(s.until) {
		s.left = 0
		return false
	}
	s.left--
	s.tried++
	record := *s.c.record
	if ch.pod != nil {
		if workload.Validate(ch.pod, s.Bounds) != nil {
			return false
		}
		record.Pod = *ch.pod
	}
	draft := ledger.NewDraft(s.c.failed.base)
	for _, p := range ch.without {
		draft.RemovePod(p.UID())
	}
	trial := &candidate{record: &record, bus: s.c.bus, policy: cmp.Or(ch.policy, s.c.policy)}
	calls := s.c.calls.WhatIf()
	_, err := s.plan(hint.WithCalls(s.ctx, calls), draft.View(), trial)
	// What a provider outside would say to the change is not known.
	return err == nil && len(calls.Skipped) == 0
}

// policies tries the other settings of the topology manager. Of several looser
// policies that would do only the strictest is offered.
func (s *search) policies() {
	now, loosened := s.c.policy, false
	for _, m := range now.Alternatives() {
		looser := m.Policy() != now.Policy()
		if looser && loosened || !s.fits(change{policy: m}) {
			continue
		}
		offer := ledger.Suggestion{
			Kind: ledger.SuggestPolicy, Policy: string(m.Policy()), Scope: string(m.Scope()),
			Text: fmt.Sprintf("the topology manager's scope were %s instead of %s", m.Scope(), now.Scope()),
		}
		if loosened = loosened || looser; looser {
			offer.Text = fmt.Sprintf("the topology manager's policy were %s instead of %s", m.Policy(), now.Policy())
		}
		s.found = append(s.found, offer)
	}
}

// removals looks for pods whose removal would do: single ones, then pairs, then
// a larger set of which none may stay.
func (s *search) removals() {
	pods := s.removable()
	pods = pods[:min(len(pods), s.left/2)]
	alone := 0
	for _, p := range pods {
		if alone < offered && s.fits(change{without: []*ledger.Pod{p}}) {
			s.offerRemoval(p)
			alone++
		}
	}
	if alone > 0 || len(pods) < 2 || !s.fits(change{without: pods}) {
		return
	}
	if pairs := len(pods) * (len(pods) - 1) / 2; pairs <= s.left/2 {
		for i, a := range pods {
			for _, b := range pods[:i] {
				if s.fits(change{without: []*ledger.Pod{b, a}}) {
					s.offerRemoval(b, a)
					return
				}
			}
		}
	}
	set := s.minimal(pods)
	if len(set) <= largestSet {
		s.offerRemoval(set...)
	}
}

// minimal leaves out of a set of pods that would do as many as it can. The
// result would do: it is the last one that was tried and did.
func (s *search) minimal(pods []*ledger.Pod) []*ledger.Pod {
	// The first few in order of preference that would do.
	low, high := 0, len(pods)
	for high-low > 1 {
		if mid := (low + high) / 2; s.fits(change{without: pods[:mid]}) {
			high = mid
		} else {
			low = mid
		}
	}
	set := slices.Clone(pods[:high])
	for i := 0; i < len(set) && len(set) > 1; {
		if fewer := slices.Delete(slices.Clone(set), i, i+1); s.fits(change{without: fewer}) {
			set = fewer
		} else {
			i++
		}
	}
	return set
}

// removable lists the pods that hold something, stand in the way of a shared pool
// that would be empty, or take the room of a full node, those first that one would rather remove: who holds what is missing, then the
// less important, then the younger ones.
func (s *search) removable() []*ledger.Pod {
	holds := map[string]bool{}
	for _, short := range s.shortages {
		for _, o := range short.Holders {
			holds[o.Pod] = true
		}
	}
	fills := s.fills()
	var pods []*ledger.Pod
	for p := range s.c.failed.base.Pods() {
		if fills(p) {
			holds[p.UID()] = true
		}
		if (holds[p.UID()] || len(p.Claims) > 0) && !s.reserved.has(p.UID()) {
			pods = append(pods, p)
		}
	}
	priority := func(p *ledger.Pod) int32 {
		if p.Pod.Priority == nil {
			return 0
		}
		return *p.Pod.Priority
	}
	slices.SortStableFunc(pods, func(a, b *ledger.Pod) int {
		if holds[a.UID()] != holds[b.UID()] {
			if holds[a.UID()] {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(priority(a), priority(b)), b.AdmittedAt.Compare(a.AdmittedAt))
	})
	return pods
}

// fills tells which pods take what the node as a whole has too little of, if that
// is why the pod was refused (OutOfcpu, OutOfmemory, OutOfpods): what counts
// there is requests, also of pods that hold nothing of their own.
func (s *search) fills() func(*ledger.Pod) bool {
	full := s.full()
	return func(p *ledger.Pod) bool {
		return full == "pods" || full != "" && workload.EffectiveRequest(&p.Pod, s.Features, full) > 0
	}
}

// full is what the node as a whole has too little of, empty if the pod was refused
// for something else.
func (s *search) full() workload.Resource {
	lacked := new(errdefs.Error)
	reason, _ := errdefs.ReasonOf(s.c.failed.err)
	if !errors.As(s.c.failed.err, &lacked) || lacked.Resource == "" || reason != errdefs.OutOf(lacked.Resource) {
		return ""
	}
	return workload.Resource(lacked.Resource)
}

func (s *search) offerRemoval(pods ...*ledger.Pod) {
	offer := ledger.Suggestion{Kind: ledger.SuggestRemoval}
	var names []string
	for _, p := range pods {
		offer.Remove = append(offer.Remove, p.UID())
		names = append(names, p.Pod.Namespace+"/"+p.Pod.Name)
	}
	if len(pods) == 1 {
		offer.Text = "pod " + names[0] + " were removed"
	} else {
		last := len(names) - 1
		offer.Text = "pods " + strings.Join(names[:last], ", ") + " and " + names[last] + " were removed"
	}
	s.found = append(s.found, offer)
}

var _ Policy = (*topology.Manager)(nil)
