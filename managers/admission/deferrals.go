package admission

import (
	"context"
	"sync"

	"github.com/berthd/berth/managers/ledger"
)

// deferrals has the last recorded deferred resize of each pod. A caller repeats a deferred resize
// until something changes, and the history shall not consist of that.
type deferrals struct {
	mu   sync.Mutex
	last map[string]deferral // guarded by mu; by the pod's uid
}

type deferral struct{ digest, reason, message string }

// rememberedDeferrals limits the pods. Without memory of a pod its deferral is recorded again.
const rememberedDeferrals = 1024

// news returns whether the result of a resize is a refusal to record: not if it is deferred as the
// one before. The digest is that of the requested size.
func (d *deferrals) news(uid string, out Verdict, digest string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if out.Outcome != Deferred {
		delete(d.last, uid)
		return out.Outcome != Admitted
	}
	now := deferral{digest, string(out.Reason), out.Message}
	if d.last[uid] == now {
		return false
	}
	if d.last == nil || len(d.last) >= rememberedDeferrals {
		d.last = map[string]deferral{}
	}
	d.last[uid] = now
	return true
}

// RefusedResize records the result of a resize that is not admitted. record has the amounts and the digest that were asked for; given is
// whether the caller has chosen the admission id, which then stands for nothing else.
func (e *Engine) RefusedResize(ctx context.Context, v Verdict, record *ledger.Pod, owner, id string, given bool) {
	if e.deferrals.news(record.UID(), v, record.Digest) {
		e.History.Refused(ctx, refusal(v, record, id))
	}
	if v.Outcome != Admitted && given {
		e.refused.remember(owner, id, attempted{record.UID(), record.Digest})
	}
}

// CheckRefused refuses an admission id that a refused attempt for another pod or another digest has.
func (e *Engine) CheckRefused(owner, id, uid, digest string) error {
	return e.refused.check(owner, id, attempted{uid, digest})
}
