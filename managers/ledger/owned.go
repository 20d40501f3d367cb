package ledger

import "cmp"

// DefaultOwner is the agent of pods without an owner in their record.
const DefaultOwner = "default"

// OwnedByOf returns the value of Pod.OwnedBy for an owner.
func OwnedByOf(owner string) string {
	if owner == DefaultOwner {
		return ""
	}
	return owner
}

// Agent returns the name of the pod's agent.
func (p *Pod) Agent() string { return cmp.Or(p.OwnedBy, DefaultOwner) }

// Agent returns the name of the pod's agent; false if it is unknown.
func (u *UnknownLivePod) Agent() (string, bool) {
	known := u.OwnedBy != "" || u.Source != "" && u.Source != FromKernel
	return cmp.Or(u.OwnedBy, DefaultOwner), known
}
