package admission

import (
	"cmp"

	"github.com/berthd/berth/managers/errdefs"
	"github.com/berthd/berth/managers/ledger"
)

// Scope is the set of pods that a call may affect. The zero value is the pods of the
// default owner.
type Scope struct {
	// Owner is the name of an agent; empty means ledger.DefaultOwner.
	Owner string
	// All selects the pods of all owners.
	All bool
}

// Agent returns the name of the calling agent.
func (s Scope) Agent() string { return cmp.Or(s.Owner, ledger.DefaultOwner) }

func (s Scope) has(owner string) bool { return s.All || owner == s.Agent() }

// Check returns an error of class Precondition for a pod of another owner.
func (s Scope) Check(uid, owner string) error {
	if s.has(owner) {
		return nil
	}
	return errdefs.Preconditionf("pod %s belongs to the owner %q, not to %q: an admin may name its owner (--owner) to act on it", uid, owner,
		s.Agent()).
		Coded(errdefs.OwnerDiffers, "pod_uid", uid, "owner", owner)
}

// checkUnknown is Check for a running pod that is not in the ledger. A pod with an unknown
// owner is in every scope.
func (s Scope) checkUnknown(u *ledger.UnknownLivePod) error {
	if owner, known := u.Agent(); known {
		return s.Check(u.UID, owner)
	}
	return nil
}

// alone returns whether no pod of another owner is known.
func (s Scope) alone(view *ledger.View) bool {
	for p := range view.Pods() {
		if !s.has(p.Agent()) && p.Pod.ResourceClaim == nil { // claims have no cgroups
			return false
		}
	}
	for u := range view.UnknownLivePods() {
		if owner, known := u.Agent(); known && !s.has(owner) && u.ResourceClaim == nil {
			return false
		}
	}
	return true
}
