package ledger

import (
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
)

// ChangeKind says what happened.
type ChangeKind string

const (
	// PodAdded: a pod was admitted.
	PodAdded ChangeKind = "pod added"
	// PodRemoved: a pod was removed.
	PodRemoved ChangeKind = "pod removed"
	// PodChanged: the record or the claims of a pod were replaced.
	PodChanged ChangeKind = "pod changed"
	// Bound: a container id was bound to a container.
	Bound ChangeKind = "bound"
	// Unbound: a container id was forgotten.
	Unbound ChangeKind = "unbound"
)

// Change is one thing that happened between two views.
type Change struct {
	Kind ChangeKind
	// Pod is the record of the pod afterwards, of one that was removed before;
	// nil for Bound and Unbound.
	Pod *Pod
	// Before is the record that was replaced; nil but for PodChanged.
	Before *Pod
	// Binding is empty but for Bound and Unbound.
	Binding Binding
}

// Changes returns what happened to pods and container ids between two views of
// one ledger, in an order that can be followed: ids are forgotten before their
// pod is removed and bound after it was added; within that by uid and id. A
// binding that was replaced is forgotten and bound. It takes time for what changed,
// not for all there is.
func Changes(old, new *View) []Change {
	var gone, removed, put, bound []Change
	for c := range ordered.Diff(old.pods, new.pods) {
		switch {
		case c.Old == c.New:
		case !c.Is:
			removed = append(removed, Change{Kind: PodRemoved, Pod: c.Old})
		case !c.Was:
			put = append(put, Change{Kind: PodAdded, Pod: c.New})
		default:
			put = append(put, Change{Kind: PodChanged, Pod: c.New, Before: c.Old})
		}
	}
	for c := range ordered.Diff(old.bindings.byID, new.bindings.byID) {
		if c.Old == c.New {
			continue
		}
		if c.Was {
			gone = append(gone, Change{Kind: Unbound, Binding: c.Old})
		}
		if c.Is {
			bound = append(bound, Change{Kind: Bound, Binding: c.New})
		}
	}
	return slices.Concat(gone, removed, put, bound)
}
