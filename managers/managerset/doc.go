// Package managerset holds the resource managers of one configuration on one machine,
// joined on a bus, with the policy that merges their hints. berthd, simulations and
// benchmarks get the same managers from the same configuration here, and nowhere else.
//
// Words:
//
//   - set: the managers of one configuration. A set never changes.
//   - managers: the sets in use. There is one, except while it is replaced.
//   - external provider: a hint provider in a separate process, which registers and
//     disconnects independently of the configuration.
//
// Another configuration and another machine, such as one with a CPU more, need another
// set. A set is replaced in three steps. Stage adds the new set to the old one. The
// ledger commits the new set's rules. Activate removes the old set. An admission takes
// its set once for each attempt, by its view, so it never combines the bus, policy and
// rules of two configurations. A plan under the old rules is stale, because the ledger has
// a new generation.
//
// Invariants: there is always a set for the current view, and none for a view that a
// replacement has outdated; sets with the same digest
// and machine make the same decisions, apart from external providers.
//
// Other modules may import this package, and every release may change it.
package managerset
