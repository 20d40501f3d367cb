// Package device hands out the devices of device plugins: it knows what the
// plugins report, says where a request could sit, and chooses which devices a
// container gets. It never speaks to a plugin: sessions feed it events, and a
// port carries the two questions it has.
//
// Words:
//
//   - resource: what one kind of device is called in a pod, as in
//     example.com/gpu.
//   - plugin: the process that serves a resource (deviceplugin v1beta1).
//   - session: one registration of a plugin for a resource; of two on the same
//     resource the newer one counts.
//   - inventory: the resources with their devices, as the sessions reported them.
//   - known: a resource whose plugin has registered, or had before a restart.
//   - capacity, allocatable: all devices, and the healthy ones; those in use are
//     in both.
//   - grace: how long a resource keeps its capacity without a plugin.
//   - in use: owned by a claim of the ledger. Nothing here remembers it.
//   - aligned: touching a node of the affinity that was decided on.
//   - reusable: owned by an earlier init container of the same pod, which has
//     finished when the next container starts.
//
// Invariants: the inventory holds what plugins said and nothing about who owns
// what; a list replaces the one before it whole; events of a session that was
// superseded change nothing; the same view, inventory and request give the same
// choice; a plugin is asked to allocate only what was planned, once for each
// container and resource of an admission.
//
// The package has the inventory's lock and no clock: events carry their time.
package device
