package ledger

import (
	"cmp"
	"reflect"
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
	was, is := old.pods.list(), new.pods.list()
	for len(was)+len(is) > 0 {
		switch order := first(was, is); {
		case order < 0:
			removed = append(removed, Change{Kind: PodRemoved, Pod: was[0]})
			was = was[1:]
		case order > 0:
			put = append(put, Change{Kind: PodAdded, Pod: is[0]})
			is = is[1:]
		default:
			if was[0] != is[0] {
				put = append(put, Change{Kind: PodChanged, Pod: is[0]})
			}
			was, is = was[1:], is[1:]
		}
	}
	if !sameMap(old.bindings, new.bindings) {
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
	}
	for _, list := range [][]Change{gone, bound} {
		slices.SortFunc(list, func(a, b Change) int { return cmp.Compare(a.Binding.ID, b.Binding.ID) })
	}
	return slices.Concat(gone, removed, put, bound)
}

// first tells which of two lists, of which one may be empty, begins with the pod
// that comes first: below 0 the first list, above 0 the second, 0 both.
func first(a, b []*Pod) int {
	switch {
	case len(a) == 0:
		return 1
	case len(b) == 0:
		return -1
	case a[0] == b[0]: // nearly always
		return 0
	}
	return cmp.Compare(a[0].UID(), b[0].UID())
}

// sameMap reports whether two maps are one, as where a commit has left it alone.
func sameMap[V any](a, b map[string]V) bool {
	return reflect.ValueOf(a).UnsafePointer() == reflect.ValueOf(b).UnsafePointer()
}
