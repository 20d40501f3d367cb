package ledger

import (
	"cmp"
	"slices"
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
	// Binding is empty but for Bound and Unbound.
	Binding Binding
}

// Changes returns what happened to pods and container ids between two views of
// one ledger, in an order that can be followed: ids are forgotten before their
// pod is removed and bound after it was added; within that by uid and id. A
// binding that was replaced is forgotten and bound.
func Changes(old, new *View) []Change {
	var gone, removed, put, bound []Change
	for p := range old.pods.all() {
		if _, ok := new.pods.get(p.UID()); !ok {
			removed = append(removed, Change{Kind: PodRemoved, Pod: p})
		}
	}
	for p := range new.pods.all() {
		switch before, ok := old.pods.get(p.UID()); {
		case !ok:
			put = append(put, Change{Kind: PodAdded, Pod: p})
		case before != p:
			put = append(put, Change{Kind: PodChanged, Pod: p})
		}
	}
	for id, b := range old.bindings {
		if new.bindings[id] != b {
			gone = append(gone, Change{Kind: Unbound, Binding: b})
		}
	}
	for id, b := range new.bindings {
		if old.bindings[id] != b {
			bound = append(bound, Change{Kind: Bound, Binding: b})
		}
	}
	for _, list := range [][]Change{removed, put} {
		slices.SortFunc(list, func(a, b Change) int { return cmp.Compare(a.Pod.UID(), b.Pod.UID()) })
	}
	for _, list := range [][]Change{gone, bound} {
		slices.SortFunc(list, func(a, b Change) int { return cmp.Compare(a.Binding.ID, b.Binding.ID) })
	}
	return slices.Concat(gone, removed, put, bound)
}
