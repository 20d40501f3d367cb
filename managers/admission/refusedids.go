package admission

import (
	"sync"

	"github.com/berthd/berth/managers/errdefs"
)

// rememberedRefusals is how many admission ids of refused attempts are remembered. It is about
// one megabyte, because ids, owners and uids have limits.
const rememberedRefusals = 4096

// refusedIDs remembers the admission ids of rejected and deferred attempts that the callers
// named. The ledger has the ids of admitted pods. The oldest ids are forgotten first, and all
// of them when berthd ends.
type refusedIDs struct {
	mu   sync.Mutex
	ids  map[refusedID]attempted // guarded by mu
	ring []refusedID             // guarded by mu; the keys of ids
	next int                     // guarded by mu; where a full ring has its oldest key
}

// refusedID is an admission id with the agent that chose it. Agents cannot block each other's ids.
type refusedID struct{ owner, id string }

// attempted is what an attempt was about: a pod and the digest of its specification.
type attempted struct{ uid, digest string }

// remember binds an id. An id that is bound already stays bound as it is.
func (r *refusedIDs) remember(owner, id string, a attempted) {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := refusedID{owner, id}
	if _, known := r.ids[key]; known {
		return
	}
	if r.ids == nil {
		r.ids = make(map[refusedID]attempted)
	}
	r.ids[key] = a
	if len(r.ring) < rememberedRefusals {
		r.ring = append(r.ring, key)
		return
	}
	delete(r.ids, r.ring[r.next])
	r.ring[r.next] = key
	r.next = (r.next + 1) % len(r.ring)
}

// check refuses an id that is bound to another pod or specification.
func (r *refusedIDs) check(owner, id string, a attempted) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	had, known := r.ids[refusedID{owner, id}]
	if !known || had == a {
		return nil
	}
	const advice = "use a new admission id for every attempt with another specification"
	if had.uid != a.uid {
		return errdefs.Existsf("admission id %q is that of an attempt for pod %s, which was refused: %s", id, had.uid, advice).
			Coded(errdefs.AdmissionIDUsed, "admission_id", id, "pod_uid", had.uid)
	}
	return errdefs.Existsf("admission id %q is that of an attempt for pod %s with another specification, which was refused: %s", id,
		had.uid, advice).
		Coded(errdefs.AdmissionIDUsed, "admission_id", id, "pod_uid", had.uid)
}
