package ledger

import "cmp"

// DefaultOwner is the agent that pods belong to of which none is noted.
const DefaultOwner = "default"

// OwnedByOf is what Pod.OwnedBy is for an owner.
func OwnedByOf(owner string) string {
	if owner == DefaultOwner {
		return ""
	}
	return owner
}

// Agent returns the name of the agent that the pod belongs to.
func (p *Pod) Agent() string { return cmp.Or(p.OwnedBy, DefaultOwner) }

// Agent returns the name of the agent that the pod belongs to; false where nothing that is
// known of the pod tells that.
func (u *UnknownLivePod) Agent() (string, bool) {
	told := u.OwnedBy != "" || u.Source != "" && u.Source != FromKernel
	return cmp.Or(u.OwnedBy, DefaultOwner), told
}
