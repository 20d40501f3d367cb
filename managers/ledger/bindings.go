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

// with returns the bindings with one added or replaced.
func (s bindings) with(b Binding) bindings {
	s = s.without(b.ID)
	s.byID = s.byID.Set(b.ID, b)
	have, _ := s.byPod.Get(b.Owner.Pod)
	at, _ := slices.BinarySearchFunc(have, b, compareBindings)
	list := make([]Binding, 0, len(have)+1)
	list = append(append(append(list, have[:at]...), b), have[at:]...)
	s.byPod = s.byPod.Set(b.Owner.Pod, list)
	return s
}

// without returns the bindings without an id.
func (s bindings) without(id string) bindings {
	b, ok := s.byID.Get(id)
	if !ok {
		return s
	}
	s.byID = s.byID.Delete(id)
	have, _ := s.byPod.Get(b.Owner.Pod)
	list := slices.DeleteFunc(slices.Clone(have), func(o Binding) bool { return o.ID == id })
	if len(list) == 0 {
		s.byPod = s.byPod.Delete(b.Owner.Pod)
	} else {
		s.byPod = s.byPod.Set(b.Owner.Pod, list)
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
	return slices.Values(list)
}

// LastUnbound returns the generation of the last commit that removed a binding; 0 if there
// was none since the ledger was opened.
func (v *View) LastUnbound() uint64 { return v.unbound }
