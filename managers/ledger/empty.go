package ledger

// Empty returns a view that holds nothing, for deciding without a ledger: what a
// draft makes of it is a view again. It is of generation 0 and keeps no traces.
func Empty(rules Rules) *View { return &View{rules: rules} }
