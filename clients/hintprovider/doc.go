// Package hintprovider turns a hint.Provider into a server for berthd: an external provider
// in Go. docs/providers.md describes how to write one; clients/hintprovider/nic is an
// example.
//
//	err := hintprovider.Run(ctx, provider, hintprovider.Options{
//		Socket: "/run/nic/nic.sock", Required: true, Resources: []string{"example.com/nic"},
//	})
//
// Words:
//
//   - allocations: what pods hold of the provider. berthd sends all of them with every
//     question; the view that the provider's methods see is made of them.
//   - reserve: what Prepare does; it holds what was planned for a time, the lease.
//   - usage: what a provider itself knows to be taken, reserved or held.
//
// A provider inside berthd sees the whole ledger. An external provider sees the machine,
// the requested pod, and its own claims; the records of other pods only have the names of
// the containers with such claims.
//
// Invariants: methods that change a provider's usage (Prepare, Abort, Committed)
// are called one at a time, Hints and Plan also beside them and each other; a lease
// that runs out is aborted without berthd; after a restart of either side Committed
// is called before anything else.
package hintprovider
