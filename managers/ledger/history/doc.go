// Package history keeps the calls that changed the ledger or were refused, each with the earlier values of what it
// changed. It leads back from the current view to earlier ones.
//
// Words:
//
//   - entry: one call, or one change that berthd made by itself.
//   - block: entries that follow each other, stored as one value; see block.go.
//   - basis: what a verdict was decided on.
//   - to rewind: to undo entries, the newest first.
//   - snapshot: a view as JSON, from which a view is made again elsewhere.
//   - share: the part of the history that the entries of one user may have.
//
// Invariants: the history is bounded by number and size, and is not part of the ledger's state: damage of it costs earlier
// states and nothing else. A state that an entry leads to is the state of that time, or an error; none is invented. An entry
// is durable exactly if its change is. What may be secret is not recorded: answers of plugins and providers, and
// annotations that berth does not use.
//
// The package does no I/O: the journal writes the entries with the commit that they belong to.
//
// Other modules may import this package, and every release may change it.
package history
