package ledger

import (
	"github.com/berthd/berth/managers/internal/ordered"
)

// ChangeKind is the kind of a change.
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
	// Unbound: a container id was removed.
	Unbound ChangeKind = "unbound"
)

// Change is one difference between two views.
type Change struct {
	Kind ChangeKind
	// Pod is the new record of the pod, or the last one of a removed pod; nil for Bound and
	// Unbound.
	Pod *Pod
	// Before is the replaced record; set only for PodChanged.
	Before *Pod
	// Binding is set only for Bound and Unbound.
	Binding Binding
}

// Changes returns the changes of pods and container ids between two views of one ledger, in
// an order that can be applied: ids are unbound before their pod is removed, and bound
// after it was added; otherwise by uid and id. A replaced binding is unbound and bound. Its
// time grows with the changes, not with the views.
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
	switch { // most commits have changes of one kind
	case len(gone)+len(removed)+len(bound) == 0:
		return put
	case len(gone)+len(put)+len(bound) == 0:
		return removed
	}
	return append(append(append(gone, removed...), put...), bound...)
}
