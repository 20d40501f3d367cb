package admission

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
	"github.com/berthd/berth/managers/ledger/check"
	"github.com/berthd/berth/managers/topology"
	"github.com/berthd/berth/managers/workload"
)

// Change is a change of the policy: the new managers, and the rules that claims are checked
// against.
type Change struct {
	Rules  ledger.Rules
	Bus    *hint.Bus
	Policy *topology.Manager
	// Override is the ledger's record of the change; nil if the configuration has the same
	// policy.
	Override *ledger.Override
}

// Fate is the result of admitting a running pod again under a new policy.
type Fate string

const (
	// Same: it would get the same amounts, possibly in another place.
	Same Fate = "same"
	// Otherwise: it would be admitted with other amounts.
	Otherwise Fate = "otherwise"
	// Refused: it would be rejected.
	Refused Fate = "refused"
)

// Outlook is the effect of a change of policy.
type Outlook struct {
	// Pods in the order of their admission. All of them keep their claims.
	Pods []PodOutlook
	// Before and After are views of the same claims under the old and new rules. After a
	// real change, After is the committed view.
	Before, After *ledger.View
}

// PodOutlook is the effect of a change of policy on a running pod.
type PodOutlook struct {
	Pod  *ledger.Pod
	Fate Fate
	// Reason and Message are those of a refusal. For Otherwise, Message describes the
	// difference.
	Reason  errdefs.Reason
	Message string
	// Findings about claims of the pod that the new rules would not allow.
	Findings []check.Finding
}

// Foresee computes the effect of a change, and changes nothing. Running pods are admitted
// under the new rules on an empty machine, one after another in the order of their
// admission. No remote call is made; the built-in choice replaces that of plugins and
// external providers. Errors are those of Reconfigure.
func (e *Engine) Foresee(ctx context.Context, ch Change) (Outlook, error) {
	before := e.Ledger.View()
	o := Outlook{Before: before, After: before.Under(ch.Rules)}
	if err := o.sharers(); err != nil {
		return o, err
	}
	quick := e.Config
	quick.Tries = -1
	// Notes about missing resources do not depend on the policy.
	quick.Resources.Unknown = IgnoreUnknown
	trial := NewTrial(quick, ledger.Empty(ch.Rules), ch.Bus, ch.Policy)
	findings := newFindings(o.Before, o.After)
	for _, p := range inOrder(before) {
		if p.Pod.ResourceClaim != nil { // no policy decides about claims
			o.Pods = append(o.Pods, PodOutlook{Pod: p, Fate: Same, Findings: findings[p.UID()]})
			continue
		}
		v, err := trial.decide(ctx, &p.Pod, true)
		if err != nil {
			return o, fmt.Errorf("try pod %s against the new policy: %w", p.UID(), err)
		}
		next := PodOutlook{Pod: p, Fate: Same, Findings: findings[p.UID()]}
		switch {
		case v.Outcome != Admitted:
			next.Fate, next.Reason, next.Message = Refused, v.Reason, v.Message
		default:
			if next.Message = difference(p, v.Pod, trial.Skipped()); next.Message != "" {
				next.Fate = Otherwise
			}
		}
		o.Pods = append(o.Pods, next)
	}
	return o, nil
}

// Reconfigure changes the rules in one commit. Running pods keep their claims and continue
// to run. Running admissions are planned again by the new managers. The new managers must
// already be active, and the old ones until Reconfigure returns. Errors are of class
// Precondition if the shared CPUs would be empty while a container uses them, and of class
// Unavailable if the journal cannot be written; or they are errors of the trial of running
// pods.
func (e *Engine) Reconfigure(ctx context.Context, ch Change) (Outlook, error) {
	release, err := e.Acquire(ctx)
	if err != nil {
		return Outlook{}, err
	}
	defer release()
	o, err := e.Foresee(ctx, ch)
	if err != nil {
		return o, err
	}
	after, err := e.Ledger.SetOverride(ctx, ch.Rules, ch.Override)
	if err != nil {
		return o, fmt.Errorf("change the policy: %w", err)
	}
	o.After = after
	return o, nil
}

// ChangeMachine changes the rules to those of another machine in one commit. The machine is a fact,
// so nothing is refused: pods keep their claims, those on missing CPUs and memory too, and the
// outlook has the new findings about them. Pods without findings are left out of it. Running
// admissions are planned again, as with Reconfigure. Errors are of class Unavailable: the journal
// cannot be written.
func (e *Engine) ChangeMachine(ctx context.Context, rules ledger.Rules) (Outlook, error) {
	release, err := e.Acquire(ctx)
	if err != nil {
		return Outlook{}, err
	}
	defer release()
	o := Outlook{Before: e.Ledger.View()}
	if o.After, err = e.Ledger.SetRules(ctx, rules); err != nil {
		return o, fmt.Errorf("change the machine: %w", err)
	}
	findings := newFindings(o.Before, o.After)
	for _, p := range inOrder(o.After) {
		if found := findings[p.UID()]; len(found) > 0 {
			o.Pods = append(o.Pods, PodOutlook{Pod: p, Fate: Same, Findings: found})
		}
	}
	return o, nil
}

// sharers refuses rules that leave no CPUs to containers with shared CPUs.
func (o *Outlook) sharers() error {
	if !o.After.SharedCPUs().IsEmpty() {
		return nil
	}
	for p := range o.After.Pods() {
		for _, c := range p.Pod.Walk() {
			owner := ledger.Owner{Pod: p.UID(), Container: c.Name}
			if set, _, _ := o.After.ContainerCPUs(owner); set.IsEmpty() {
				return errdefs.Preconditionf("the shared pool would be empty, and container %s of pod %s runs there: remove a pod that has CPUs of its own, or reserve fewer", c.Name, &p.Pod).
					Coded(errdefs.SharedPoolEmpty, "pod_uid", p.UID(), "container_name", c.Name)
			}
		}
	}
	return nil
}

// inOrder returns the pods in the order of their admission.
func inOrder(view *ledger.View) []*ledger.Pod {
	return slices.SortedFunc(view.Pods(), func(a, b *ledger.Pod) int {
		return cmp.Or(a.AdmittedAt.Compare(b.AdmittedAt), cmp.Compare(a.UID(), b.UID()))
	})
}

// newFindings returns the findings of a view that another one lacks, by pod.
func newFindings(before, after *ledger.View) map[string][]check.Finding {
	old := check.View(before)
	out := map[string][]check.Finding{}
	for _, f := range check.View(after) {
		if !slices.ContainsFunc(old, f.Same) {
			out[f.Owner.Pod] = append(out[f.Owner.Pod], f)
		}
	}
	return out
}

// difference describes the difference between a pod's current and new amounts; empty if
// there is none. Skipped providers were not called, so their amounts are omitted.
func difference(has, would *ledger.Pod, skipped map[string]bool) string {
	now, then := amounts(has), amounts(would)
	var texts []string
	for _, claims := range [][]ledger.Claim{has.Claims, would.Claims} {
		for i := range claims {
			key := amountKey{claims[i].Owner, claims[i].Resource, claims[i].Provider}
			a, b := now[key], then[key]
			if a == b || skipped[key.provider] {
				continue
			}
			delete(now, key)
			delete(then, key)
			none := noneOf(key)
			texts = append(texts, fmt.Sprintf("%s has %s and would get %s",
				cmp.Or(key.owner.Container, "the pod"), cmp.Or(a, none), cmp.Or(b, none)))
		}
	}
	return strings.Join(texts, "; ")
}

// noneOf describes that a pod or container has nothing of a resource, or uses the shared
// part.
func noneOf(key amountKey) string {
	switch workload.Resource(key.resource) {
	case workload.CPU:
		return "no CPUs of its own"
	case workload.Memory:
		return "no memory of its own"
	}
	return "no " + key.resource
}

type amountKey struct {
	owner              ledger.Owner
	resource, provider string
}

// amounts describes the amount of each claim of a pod.
func amounts(p *ledger.Pod) map[amountKey]string {
	out := map[amountKey]string{}
	for i := range p.Claims {
		c := &p.Claims[i]
		text := "some " + c.Resource
		switch {
		case c.CPUs != nil:
			text = fmt.Sprintf("%d CPUs (%s)", c.CPUs.Set.Len(), c.CPUs.Use)
		case c.Devices != nil:
			text = fmt.Sprintf("%d %s", len(c.Devices.Devices), c.Resource)
		case len(c.Memory) > 0:
			sum := uint64(0)
			for _, b := range c.Memory {
				sum += b.Bytes
			}
			text = workload.Resource(c.Resource).Text(int64(sum)) + " of " + c.Resource
		}
		out[amountKey{c.Owner, c.Resource, c.Provider}] = text
	}
	return out
}
