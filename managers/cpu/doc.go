// Package cpu hands out CPUs: which containers get CPUs of their own, which CPUs
// those are, and between which NUMA nodes the topology manager may choose. It
// takes the decisions of the kubelet's CPU manager (kubernetes v1.36.3, KEP-3570)
// where those keep the rules below; docs/deviations.md lists the others.
//
// # Words
//
//   - shared pool: the CPUs that nobody holds. Containers without CPUs of their
//     own run there. It includes the reserved CPUs, except under the option
//     strict-cpu-reservation.
//   - reserved: CPUs that are never given exclusively, kept for the system.
//   - available: the shared pool without the reserved CPUs, and so without those that
//     are off line.
//   - exclusive: taken out of the shared pool for one container.
//   - reusable: CPUs of init containers that have finished when the container in
//     question starts; it may take them over.
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
//   - An answer follows from the machine, the configuration, the view and the
//     request alone; nothing is remembered between calls.
//   - A container gets exactly as many CPUs as it asks for, none of them
//     reserved, none held by anybody else but finished init containers of its
//     own pod.
//   - No plan passes Validate that empties the shared pool while a container
//     runs in it.
//
// Putting a cpuset in force is not done here: that is the reconciler's work,
// from the same ledger.
package cpu
