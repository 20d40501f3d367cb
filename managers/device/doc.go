// Package device allocates the devices of device plugins. It stores what plugins report,
// returns the NUMA nodes on which a request fits, and chooses the devices of a container.
// It makes no calls to plugins itself: sessions deliver events, and a port makes the two
// calls that a plan needs.
//
// Words:
//
//   - resource: the name of one kind of device in a pod, for example example.com/gpu.
//   - plugin: the process that serves a resource (deviceplugin v1beta1).
//   - session: one registration of a plugin for a resource. Of two sessions for one
//     resource the newer one counts.
//   - inventory: the resources with their devices, as reported by the sessions.
//   - known: a resource whose plugin has registered, or had before a restart.
//   - capacity, allocatable: all devices, and the healthy ones. Both include devices in use.
//   - grace: how long a resource keeps its capacity without a plugin.
//   - in use: owned by a claim of the ledger. The package itself does not store it.
//   - aligned: a device with a node of the merged affinity.
//   - reusable: owned by an earlier init container of the same pod, which has finished when
//     the next container starts.
//
// Invariants:
//
//   - The inventory has only data from plugins, and no owners.
//   - A list replaces the previous list completely.
//   - Events of a superseded session change nothing.
//   - The same view, inventory and request give the same choice.
//   - A plugin's Allocate is called only for planned devices, once for each container and
//     resource of an admission.
//
// The package has the inventory's lock and no clock; events have a time.
//
// Other modules may import this package, and every release may change it.
package device
