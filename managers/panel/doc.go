// Package panel puts together who decides: the managers of one configuration on
// one machine, joined on a bus, with the policy that merges their answers. It is
// the one place where berthd, a simulation and a benchmark get the same managers
// from the same configuration.
//
// Words:
//
//   - panel: the managers of one configuration. It never changes.
//   - outside provider: a hint provider in another process; it comes and goes
//     whatever the configuration is.
//   - seats: the panels in force. There is one, but for the moment in which it is
//     replaced.
//
// A panel is replaced in three steps: Seat puts the new one beside the old one, the
// ledger commits the new panel's rules, Settle sends the old one away. An admission
// takes its panel once for each attempt, by the view that it works on, so it never
// sees bus, policy and rules of two configurations; and what it has planned under
// the old rules is stale, as the ledger has moved.
//
// Invariants: at every moment there is a panel for the current view; panels of one
// digest decide alike, but for outside providers.
package panel
