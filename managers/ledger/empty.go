package ledger

// Empty returns a view that holds nothing, for deciding without a ledger: what a
// draft makes of it is a view again. It is of generation 0 and keeps no traces.
func Empty(rules Rules) *View { return &View{rules: rules, pods: newRecords(map[string]*Pod{})} }

// Flat returns a view of the same facts. Views of drafts carry the changes along,
// which every further draft copies; a flat one has none.
func (v *View) Flat() *View {
	flat := *v
	flat.pods = v.pods.flat()
	return &flat
}
