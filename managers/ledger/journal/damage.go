package journal

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/internal/ordered"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
)

// LostPod is a pod that is not whole: its record or one of its claims is damaged or
// missing, or it contradicts a pod that is kept. It is not in the ledger, and its claims
// are free there. The caller has to find out whether the pod is running, and which of these
// claims it has.
type LostPod struct {
	// UID of the pod. If only a damaged key is left of a pod, UID may be a damaged form of
	// another uid.
	UID string `json:"uid"`
	// Why it is lost, as a sentence; several reasons are joined with "; ".
	Why string `json:"why"`
	// Pod is its record, without claims and trace; nil if the record is unreadable.
	Pod *ledger.Pod `json:"pod,omitempty"`
	// Claims are the readable claims, in order. With PerhapsStale there may be several for
	// one owner, resource and provider; the pod had one of them.
	Claims []ledger.Claim `json:"claims,omitempty"`
	// Bindings of its containers by the runtime's id.
	Bindings map[string]ledger.Binding `json:"bindings,omitempty"`
	// PerhapsStale means that some of the record or claims come from a freed part of the
	// file. The pod may have been removed since, or have other claims.
	PerhapsStale bool `json:"perhaps_stale,omitempty"`
}

// lose marks a pod as lost, or adds a reason.
func (st *state) lose(uid, why string) *LostPod {
	p := st.lost[uid]
	if p == nil {
		p = &LostPod{UID: uid}
		st.lost[uid] = p
	}
	if !strings.Contains(p.Why, why) {
		p.Why = strings.TrimPrefix(p.Why+"; "+why, "; ")
	}
	return p
}

func (l *LostPod) record(p *ledger.Pod) *LostPod {
	l.Pod = p
	return l
}

func (l *LostPod) add(claims ...storedClaim) *LostPod {
	l.Claims = append(l.Claims, claimsOf(claims)...)
	slices.SortStableFunc(l.Claims, ledger.CompareClaims)
	return l
}

// claimsOf returns claims without their entries.
func claimsOf(claims []storedClaim) []ledger.Claim {
	var all []ledger.Claim
	for _, c := range claims {
		all = append(all, c.Claim)
	}
	return all
}

// resolve marks pods that contradict the ledger's invariants as lost, and returns the view of the rest and the policy
// findings about it. The rules must be set.
//
// If two pods have the same thing, the pod with the older last change is lost; after
// changes in the same commit, the pod with the greater uid. The ledger never commits such a
// pair. So one pod was removed, and its claim was given to the other one afterwards: the
// later one is right.
func (st *state) resolve() (*ledger.View, []check.Finding) {
	for {
		st.release()
		view := ledger.NewView(st.State)
		findings := check.View(view)
		if _, wrong := check.FirstStructural(findings); !wrong {
			return view, findings
		}
		kept := len(st.lost)
		for _, f := range findings {
			if f.Kind == check.Structural {
				st.damage = append(st.damage, f)
				st.keepOut(f)
			}
		}
		if len(st.lost) == kept && !st.empty(findings) {
			st.nothing()
		}
	}
}

// empty removes the claims of unknown living pods that contradict each other or themselves,
// and returns whether there are any.
func (st *state) empty(findings []check.Finding) (some bool) {
	for _, f := range findings {
		for _, uid := range []string{f.Owner.Pod, f.Other.Pod} {
			u := st.Unknown[uid]
			if f.Kind != check.Structural || u == nil || len(u.Claims) == 0 {
				continue
			}
			u.Claims, u.DevicesUnknown = nil, true
			st.uncertain = append(st.uncertain, fmt.Sprintf("what the living pod %s holds contradicts itself: %s", uid, f.Text))
			some = true
		}
	}
	return some
}

// nothing empties the state if no pod can be named as the cause of a finding.
func (st *state) nothing() {
	const why = "the ledger contradicts itself"
	for uid := range st.Pods {
		st.lose(uid, why)
	}
	st.uncertain = append(st.uncertain, why)
	st.Pods, st.Unknown, st.Bindings = nil, nil, nil
}

// keepOut removes a pod from the view because of a finding, unless another pod of the
// finding is already removed.
func (st *state) keepOut(f check.Finding) {
	uid := f.Owner.Pod
	p, here := st.Pods[uid]
	if other := f.Other.Pod; other != "" && other != uid {
		o, both := st.Pods[other]
		switch {
		case !here && both && st.Unknown[uid] != nil: // a running pod keeps its claims
			uid, p, o = other, o, nil
		case here && st.Unknown[other] != nil:
			o = nil
		case !here || !both:
			return
		}
		if o != nil && cmp.Or(cmp.Compare(newest(o), newest(p)), -strings.Compare(other, uid)) < 0 {
			uid, p = other, o
		}
	}
	if p == nil {
		return
	}
	delete(st.Pods, uid)
	lost := st.lose(uid, f.Text)
	lost.Pod = &ledger.Pod{}
	*lost.Pod = *p
	lost.Pod.Claims, lost.Pod.Trace = nil, nil
	lost.Claims = p.Claims
}

// newest returns the generation of the pod's last known change.
func newest(p *ledger.Pod) uint64 { return max(p.AdmittedGeneration, p.ChangedGeneration) }

// release removes the bindings of removed pods, and unknown living pods that are in the
// ledger.
func (st *state) release() {
	for _, id := range ordered.Keys(st.Bindings) {
		b := *st.Bindings[id]
		if p, ok := st.Pods[b.Owner.Pod]; ok && p.Pod.Container(b.Owner.Container) != nil {
			continue
		}
		delete(st.Bindings, id)
		lost, ok := st.lost[b.Owner.Pod]
		if !ok {
			st.damage = append(st.damage, check.Finding{
				Kind: check.Structural, Rule: check.RuleOwner, Owner: b.Owner,
				Text: fmt.Sprintf("container id %s is bound to %s, which is not known", id, b.Owner),
			})
			continue
		}
		if lost.Bindings == nil {
			lost.Bindings = map[string]ledger.Binding{}
		}
		lost.Bindings[id] = b
	}
	for _, uid := range ordered.Keys(st.Unknown) {
		if _, known := st.Pods[uid]; known || uid == "" || strings.Contains(uid, "/") {
			delete(st.Unknown, uid)
			st.damage = append(st.damage, check.Finding{
				Kind: check.Structural, Rule: check.RuleUnknownLive, Owner: ledger.Owner{Pod: uid},
				Text: fmt.Sprintf("pod %q is noted as living and unknown, and is known or no pod", uid),
			})
		}
	}
}

// fill adds the damage to the report.
func (st *state) fill(r *Report) {
	r.MigratedFrom, r.Memory, r.Damage = st.migratedFrom, st.rules.Memory, st.damage
	r.Uncertain = strings.Join(slices.Compact(st.uncertain), "; ")
	for _, uid := range ordered.Keys(st.lost) {
		r.Lost = append(r.Lost, *st.lost[uid])
	}
	r.Whole = len(st.Pods)
	r.Renewed = st.renewed()
	if err := st.noRules(); err != nil {
		r.History = err.Error()
	}
}

// corrupt returns the error for the damage in the report. It describes what a start would keep.
func (r *Report) corrupt() error {
	text := "open ledger: " + r.Damage[0].String()
	if more := len(r.Damage) - 1; more > 0 {
		text += fmt.Sprintf(" (and %d more)", more)
	}
	return errdefs.Corruptf("%s; %s", text, r.Outcome())
}

// Outcome describes which pods are kept and which are lost.
func (r *Report) Outcome() string {
	text := fmt.Sprintf("%d pods are whole", r.Whole)
	if n := len(r.Lost); n > 0 {
		uids := make([]string, 0, n)
		for _, l := range r.Lost[:min(n, namedPods)] {
			uids = append(uids, l.UID)
		}
		text += fmt.Sprintf(", %d are lost (%s", n, strings.Join(uids, ", "))
		if n > namedPods {
			text += ", …"
		}
		text += ")"
	}
	if r.Uncertain != "" {
		text += "; others may be missing: " + r.Uncertain
	}
	return text
}

// namedPods limits the lost pods that a sentence names.
const namedPods = 10
