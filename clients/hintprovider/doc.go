// Package hintprovider is the SDK for external hint providers in Go. Its types are those of
// the API (api/berth/...), so a provider in another module does not depend on packages of
// managers/, which may change at any time. docs/providers.md describes how to write a provider.
//
//	err := hintprovider.Run(ctx, provider, hintprovider.Options{
//		Socket: "/run/nic/nic.sock", Required: true, Resources: []string{"example.com/nic"},
//	})
//
// Words:
//
//   - request: the pod or container that a call is about, with the allocations of that moment.
//   - reserve: what Prepare does; the claims are reserved for a time, the lease.
//
// Invariants: methods that change what a provider has reserved (Prepare, Abort, Committed) are
// called one at a time, Hints and Plan also at the same time as them and each other. Committed is called
// before all other methods, and again after each restart of either side.
package hintprovider
