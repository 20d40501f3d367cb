package ledger

import (
	"cmp"
	"iter"
	"slices"

	"github.com/berthd/berth/managers/internal/ordered"
)

// bindings are those of a view.
type bindings struct {
	byID ordered.Map[string, Binding]
	// byPod has the bindings of each pod's containers in the order of compareBindings; the
	// lists are immutable.
	byPod ordered.Map[string, []Binding]
}

// compareBindings orders bindings by container, then from older to newer.
func compareBindings(a, b Binding) int {
	return cmp.Or(cmp.Compare(a.Owner.Pod, b.Owner.Pod),
		cmp.Compare(a.Owner.Container, b.Owner.Container),
		cmp.Compare(a.Sequence, b.Sequence), cmp.Compare(a.ID, b.ID))
}

// with returns the bindings with changes by id; nil removes one. The list of each pod is made once,
// because a pod may have thousands of them.
func (s bindings) with(changes map[string]*Binding) bindings {
	added := map[string][]Binding{}
	for id, b := range changes {
		if old, ok := s.byID.Get(id); ok {
			if _, changes := added[old.Owner.Pod]; !changes {
				added[old.Owner.Pod] = nil
			}
			s.byID = s.byID.Delete(id)
		}
		if b != nil {
			s.byID = s.byID.Set(id, *b)
			added[b.Owner.Pod] = append(added[b.Owner.Pod], *b)
		}
	}
	for pod, list := range added {
		have, _ := s.byPod.Get(pod)
		for _, b := range have {
			if _, changed := changes[b.ID]; !changed {
				list = append(list, b)
			}
		}
		if slices.SortFunc(list, compareBindings); len(list) == 0 {
			s.byPod = s.byPod.Delete(pod)
		} else {
			s.byPod = s.byPod.Set(pod, list)
		}
	}
	return s
}

// Binding returns the binding of a runtime's container id.
func (v *View) Binding(id string) (Binding, bool) { return v.bindings.byID.Get(id) }

// Bindings yields all bindings, by owner, older before newer.
func (v *View) Bindings() iter.Seq[Binding] {
	return func(yield func(Binding) bool) {
		for list := range v.bindings.byPod.Values() {
			for _, b := range list {
				if !yield(b) {
					return
				}
			}
		}
	}
}

// BindingsOf yields the bindings of a pod's containers in the order of Bindings, without
// reading others.
func (v *View) BindingsOf(uid string) iter.Seq[Binding] {
	list, _ := v.bindings.byPod.Get(uid)
	if len(list) == 0 {
		return noBindings
	}
	return slices.Values(list)
}

// noBindings allocates nothing: most pods that a commit concerns have no container yet, or none any more.
func noBindings(func(Binding) bool) {}

// LastUnbound returns the generation of the last commit that removed a binding; 0 if there
// was none since the ledger was opened.
func (v *View) LastUnbound() uint64 { return v.unbound }
