package admission

import "sync"

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
func (d *deferrals) news(uid string, out Resized, digest string) bool {
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
