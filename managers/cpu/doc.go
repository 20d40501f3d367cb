// Package cpu allocates CPUs: which containers get exclusive CPUs, which CPUs these are,
// and which NUMA nodes are possible. It makes the decisions of the kubelet's CPU manager
// (kubernetes v1.37.2, KEP-3570) where they satisfy the invariants below;
// docs/deviations.md lists the exceptions.
//
// # Words
//
//   - shared pool: the CPUs that are not exclusive. Containers without exclusive CPUs run
//     there. It includes the reserved CPUs, except with the option strict-cpu-reservation.
//   - reserved: CPUs that are never assigned exclusively, for the system.
//   - available: the shared pool without reserved CPUs and offline CPUs.
//   - exclusive: taken out of the shared pool for one container.
//   - reusable: CPUs of init containers that have finished when the requested container
//     starts; it may take them over.
//   - pod's CPU set: CPUs taken for a pod as a whole and divided among its containers
//     (pod-level resources, KEP-5526).
//   - packed, spread, distributed: the ways to choose CPUs; see run, and the
//     options in options.go.
//   - unit: a core, uncore, socket or NUMA node. It is whole while all of its
//     CPUs are free.
//   - uncore: group of CPUs that share a last level cache.
//
// # Invariants
//
//   - An answer depends only on the machine, the configuration, the view and the request;
//     nothing is stored between calls.
//   - A container gets exactly the requested number of CPUs. None of them is reserved or
//     held by another container, except by finished init containers of its own pod.
//   - Validate refuses every plan that empties the shared pool while a container uses it.
//
// The reconciler, not this package, writes cpusets, from the same ledger.
//
// Other modules may import this package, and every release may change it.
package cpu
