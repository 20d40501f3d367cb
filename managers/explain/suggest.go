package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berthd/berth/managers/errdefs"
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

// Dry tells how changes are tried, and how many of them.
type Dry struct {
	// Run reports whether a pod would be admitted on a view under a policy. It makes no
	// remote call: where a plugin or provider gave no answer to this admission, the
	// built-in choice stands for it.
	Run func(ctx context.Context, view *ledger.View, pod *workload.Pod, policy *topology.Manager) bool
	// Busy reports whether a pod has an operation in flight, so that it cannot be suggested.
	Busy func(uid string) bool
	// Tries bounds the dry runs, and Time how long they take together by Now.
	Tries    int
	Time     time.Duration
	Now      func() time.Time
	Bounds   workload.Bounds
	Features workload.Features
	// Kubelet means that a kubelet decides on the node, so that suggestions are carried out there.
	Kubelet bool
}

// search finds changes that make a rejected pod fit. It offers nothing
// that a dry run has not shown.
type search struct {
	*Refusal
	Dry
	ctx       context.Context
	shortages []ledger.Shortage
	until     time.Time
	left      int // dry runs
	tried     int
	found     []ledger.Suggestion
}

// Suggest returns changes that would make the pod fit, and how many were tried.
// The search begins with the shortages, which are those of Missing. The note names pods whose
// removal would help if they were not made again on this node; it is empty if other pods help.
func (r *Refusal) Suggest(ctx context.Context, d Dry, shortages []ledger.Shortage) (found []ledger.Suggestion, tried int, note string) {
	s := &search{Refusal: r, Dry: d, ctx: ctx, shortages: shortages, until: d.Now().Add(d.Time), left: max(d.Tries, 0)}
	kept := min(s.left/2, leftForRemovals)
	s.left -= kept
	s.requests()
	s.split()
	s.left += kept
	if r.Request.Pod.ResourceClaim == nil { // no policy decides about claims
		s.policies()
	}
	note = s.removals()
	return ranked(s.found), s.tried, note
}

// ranked puts those first that cost least. To go without a resource is offered only if nothing else helps.
func ranked(found []ledger.Suggestion) []ledger.Suggestion {
	order := []ledger.SuggestionKind{
		ledger.SuggestWait, ledger.SuggestRemoval, ledger.SuggestRequest, ledger.SuggestSplit, ledger.SuggestPolicy,
	}
	without := func(o ledger.Suggestion) bool {
		return o.Kind == ledger.SuggestRequest && slices.ContainsFunc(o.Requests, func(r ledger.RequestChange) bool { return r.To == 0 })
	}
	if useful := slices.DeleteFunc(slices.Clone(found), without); len(useful) > 0 {
		found = useful
	}
	slices.SortStableFunc(found, func(a, b ledger.Suggestion) int {
		return cmp.Compare(slices.Index(order, a.Kind), slices.Index(order, b.Kind))
	})
	return found
}

// change is the input of one dry run; empty fields change nothing.
type change struct {
	pod     *workload.Pod
	policy  *topology.Manager
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
	if ch.pod != nil && workload.Validate(ch.pod, s.Bounds) != nil {
		return false
	}
	draft := ledger.NewDraft(s.Base)
	for _, p := range ch.without {
		draft.RemovePod(p.UID())
	}
	return s.Run(s.ctx, draft.View(), cmp.Or(ch.pod, s.Request.Pod), cmp.Or(ch.policy, s.Policy))
}

// policies tries the other settings of the topology manager. Of several looser
// policies that would do only the strictest is offered.
func (s *search) policies() {
	now, loosened := s.Policy, false
	for _, m := range now.Alternatives() {
		looser := m.Policy() != now.Policy()
		if looser && loosened || !s.fits(change{policy: m}) {
			continue
		}
		offer := ledger.Suggestion{
			Kind: ledger.SuggestPolicy, Policy: string(m.Policy()), Scope: string(m.Scope()),
			Text: fmt.Sprintf("with topology scope %s instead of %s", m.Scope(), now.Scope()),
		}
		if loosened = loosened || looser; looser {
			offer.Text = fmt.Sprintf("with topology policy %s instead of %s", m.Policy(), now.Policy())
		}
		offer.How = s.settings(m)
		s.found = append(s.found, offer)
	}
}

// removals searches pods whose removal makes room: single ones, then pairs, then
// a larger set of which none may stay. If none helps, the note names those that return and would.
func (s *search) removals() (note string) {
	pods, returning := s.removable()
	pods = pods[:min(len(pods), s.left/2)]
	alone := 0
	for _, p := range pods {
		if alone < offered && s.fits(change{without: []*ledger.Pod{p}}) {
			s.offerRemoval(p)
			alone++
		}
	}
	switch {
	case alone > 0:
		return ""
	case len(pods) < 2 || !s.fits(change{without: pods}):
		return s.inVain(pods, returning)
	}
	if pairs := len(pods) * (len(pods) - 1) / 2; pairs <= s.left/2 {
		for i, a := range pods {
			for _, b := range pods[:i] {
				if s.fits(change{without: []*ledger.Pod{b, a}}) {
					s.offerRemoval(b, a)
					return ""
				}
			}
		}
	}
	set := s.minimal(pods)
	if len(set) <= largestSet {
		s.offerRemoval(set...)
	}
	return ""
}

// inVain names the fewest returning pods, of those that one would rather remove, without which the pod would fit together with
// the others that can be removed.
func (s *search) inVain(pods, returning []*ledger.Pod) string {
	if len(returning) == 0 || !s.fits(change{without: slices.Concat(pods, returning)}) {
		return ""
	}
	var names []string
	for _, p := range s.minimal(slices.Concat(pods, returning)) {
		if p.Pod.Returns() {
			names = append(names, p.Pod.Namespace+"/"+p.Pod.Name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "no removal of pods helps: " + listed("pod", names) + " would be made again on this node (static pods, and those of a DaemonSet)"
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

// removable lists the pods that hold something, prevent a shared pool
// that would be empty, or take the room of a full node, those first that one would rather remove: who holds what is missing, then who
// ends anyway, then the less important, then the younger ones. Pods that return are apart: their removal makes no room.
func (s *search) removable() (pods, returning []*ledger.Pod) {
	holds := map[string]bool{}
	for _, short := range s.shortages {
		for _, o := range short.Holders {
			holds[o.Pod] = true
		}
	}
	fills := s.fills()
	for p := range s.Base.Pods() {
		if (p.Pod.ResourceClaim == nil) != (s.Request.Pod.ResourceClaim == nil) && !s.Base.Rules().OnePool {
			continue // pods and claims take nothing from each other
		}
		if fills(p) {
			holds[p.UID()] = true
		}
		if (holds[p.UID()] || len(p.Claims) > 0) && !s.Busy(p.UID()) {
			pods = append(pods, p)
		}
	}
	priority := func(p *ledger.Pod) int32 {
		if p.Pod.Priority == nil {
			return 0
		}
		return *p.Pod.Priority
	}
	first := func(a, b bool) int {
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}
	slices.SortStableFunc(pods, func(a, b *ledger.Pod) int {
		return cmp.Or(first(holds[a.UID()], holds[b.UID()]), first(ends(a), ends(b)), cmp.Compare(priority(a), priority(b)),
			b.AdmittedAt.Compare(a.AdmittedAt))
	})
	for _, p := range pods {
		if p.Pod.Returns() {
			returning = append(returning, p)
		}
	}
	return slices.DeleteFunc(pods, func(p *ledger.Pod) bool { return p.Pod.Returns() }), returning
}

// fills reports which pods take what the node as a whole has too little of, if that
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
	reason, _ := errdefs.ReasonOf(s.Err)
	if !errors.As(s.Err, &lacked) || lacked.Resource == "" || reason != errdefs.OutOf(lacked.Resource) {
		return ""
	}
	return workload.Resource(lacked.Resource)
}

// ends reports whether the pod ends by itself and does not run again.
func ends(p *ledger.Pod) bool {
	return p.Pod.ResourceClaim == nil && (p.Pod.RestartPolicy == "Never" || p.Pod.RestartPolicy == "OnFailure")
}

// offerRemoval suggests to remove pods, or to wait for them if all end by themselves.
func (s *search) offerRemoval(pods ...*ledger.Pod) {
	offer := ledger.Suggestion{Kind: ledger.SuggestRemoval}
	var names, claims []string
	for _, p := range pods {
		offer.Remove = append(offer.Remove, p.UID())
		offer.How = append(offer.How, s.removal(p)...)
		if name := p.Pod.Namespace + "/" + p.Pod.Name; p.Pod.ResourceClaim == nil {
			names = append(names, name)
		} else {
			claims = append(claims, name)
		}
	}
	offer.Text = "without " + listed("pod", names)
	switch {
	case len(names) == 0:
		offer.Text = "without " + listed("claim", claims)
	case len(claims) > 0:
		offer.Text += ", and without " + listed("claim", claims)
	case !slices.ContainsFunc(pods, func(p *ledger.Pod) bool { return !ends(p) }):
		offer.Kind, offer.Wait, offer.Remove = ledger.SuggestWait, offer.Remove, nil
		offer.Text, offer.How = "when "+listed("pod", names)+" has ended", s.waiting(pods)
		if len(names) > 1 {
			offer.Text = "when " + listed("pod", names) + " have ended"
		}
	}
	s.found = append(s.found, offer)
}

// listed returns the noun with names that follow it; there is at least one.
func listed(noun string, names []string) string {
	last := len(names) - 1
	if last <= 0 {
		return noun + " " + strings.Join(names, "")
	}
	return noun + "s " + strings.Join(names[:last], ", ") + " and " + names[last]
}
