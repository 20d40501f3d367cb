package admission

import (
	"context"
	"fmt"
	"slices"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/hint"
	"github.com/berthd/berth/managers/ledger"
)

// Complete requests missing answers about a pod's devices from plugins and providers, and
// stores them. After a pod was taken over, the ledger may have only the device ids.
// Complete does nothing if no answer is missing.
//
// Only claims without an answer are sent, with the pod's own admission id. For a provider
// this is the same admission again, whether or not an earlier attempt reached it. The
// provider's reservation is confirmed by the lease that is committed with the answers, or
// aborted. The pod keeps its devices in both cases.
func (e *Engine) Complete(ctx context.Context, uid string) error {
	if p, ok := e.Ledger.View().Pod(uid); !ok || !incomplete(p) {
		return nil
	}
	e.waits(ctx)
	unlock, err := e.LockPod(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	b, err := e.Basis(e.Ledger.View)
	if err != nil {
		return fmt.Errorf("complete the plugins' answers for pod %s: %w", uid, err)
	}
	p, ok := b.View.Pod(uid)
	if !ok || !incomplete(p) {
		return nil
	}
	draft, err := e.answers(ctx, b, p)
	if err == nil {
		err = e.keepAnswers(ctx, draft, p)
	}
	if err != nil {
		b.Bus.Abort(context.WithoutCancel(ctx), p.AdmissionID)
		return fmt.Errorf("complete the plugins' answers for pod %s: %w", uid, err)
	}
	return nil
}

// answers returns a draft in which the pod has only the claims that lacked an answer, now
// with answers.
func (e *Engine) answers(ctx context.Context, b Basis, p *ledger.Pod) (*ledger.Draft, error) {
	pending := *p
	pending.Claims = slices.DeleteFunc(slices.Clone(p.Claims), func(c ledger.Claim) bool { return !unanswered(&c) })
	draft := ledger.NewDraft(b.View)
	draft.PutPod(&pending)
	trace := &ledger.Trace{}
	for i := -1; i < len(p.Pod.Containers); i++ {
		if err := b.Bus.Prepare(ctx, p.AdmissionID, draft, hint.Request{Pod: &p.Pod, Container: i}, trace); err != nil {
			return nil, err
		}
	}
	// The draft drops the claims of a failed advisory provider. But the pod runs with the
	// devices, so this is a failure here.
	if done, _ := draft.View().Pod(p.UID()); len(done.Claims) != len(pending.Claims) {
		text := "a provider gave no answer"
		for _, s := range trace.Steps {
			if s.Kind == ledger.StepNoted {
				text = s.Text
			}
		}
		return nil, errdefs.Unavailablef("%s", text)
	}
	return draft, nil
}

// keepAnswers commits the answers in a draft with their leases.
func (e *Engine) keepAnswers(ctx context.Context, draft *ledger.Draft, p *ledger.Pod) error {
	done, _ := draft.View().Pod(p.UID())
	_, err := e.Update(ctx, func(d *ledger.Draft) error {
		now, ok := d.View().Pod(p.UID())
		if !ok || !ledger.SameClaims(now.Claims, p.Claims) {
			return errdefs.Unavailablef("what pod %s holds has changed meanwhile", p.UID())
		}
		d.AddClaims(p.UID(), done.Claims...)
		for l := range draft.View().Leases() {
			if l.AdmissionID == p.AdmissionID {
				d.PutLease(l)
			}
		}
		return nil
	})
	return err
}

// incomplete returns whether a plugin's answer is missing.
func incomplete(p *ledger.Pod) bool {
	return slices.ContainsFunc(p.Claims, func(c ledger.Claim) bool { return unanswered(&c) })
}

// unanswered returns whether a claim lacks the answer about its devices.
func unanswered(c *ledger.Claim) bool {
	return c.Devices != nil && c.Devices.Response == nil && c.Devices.Answer != ""
}
