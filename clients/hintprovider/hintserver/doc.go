// Package hintserver turns a hint.Provider of managers/ into a server for berthd: an external
// provider that is written like those inside berthd, and can be tested with hinttest.
// clients/hintprovider has an interface without packages of managers/ for other modules.
//
// Words:
//
//   - allocations: the claims of pods on the provider's resources. berthd sends all of them
//     once for each connection, and then changes. The view that the provider's methods see is
//     made of them.
//   - list: all allocations at one time, with a sequence number. An update names the list that
//     it changes. The server keeps the newest lists, and requests everything from berthd if it does
//     not have that list.
//   - reserve: what Prepare does; it holds what was planned for a time, the lease.
//   - usage: what a provider itself knows to be taken, reserved or held.
//
// A provider inside berthd sees the whole ledger. An external provider sees the machine,
// the requested pod, and its own claims; the records of other pods only have the names of
// the containers with such claims.
//
// Invariants: methods that change a provider's usage (Prepare, Abort, Committed)
// are called one at a time, Hints and Plan also at the same time as them and each other; a lease
// that runs out is aborted without berthd; after a restart of either side Committed
// is called before anything else.
package hintserver
