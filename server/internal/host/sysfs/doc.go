// Package sysfs discovers the machine from the kernel's own files: CPUs, caches,
// NUMA nodes, memory and huge pages, as a machine.Snapshot.
//
// It reads trees (fs.FS) and not paths, so that the running machine, a recorded
// tree and one simulated in a test go through the same code. Host opens the real
// ones. Reading happens once; CPUs that come and go later are not noticed.
//
// The rules are those of cadvisor 0.56, from which the kubelet takes its machine,
// because decisions depend on them: which threads form a core, when a cache
// counts, whose number stands in for a missing one. They are at the functions
// that follow them. Where cadvisor's answer is of no use (CPUs that are off line
// among the counted, nodes without memory on a kernel without NUMA, distances by
// id instead of by position), the right one is given instead; each such place
// says so.
//
// # Words
//
//   - directory: a node or CPU directory, as in /sys/devices/system/node/node0.
//     Directories are visited in the order of their names as text (cpu0, cpu1,
//     cpu10, cpu2), which decides where a broken cache directory cuts off.
//   - pseudo-node: on a kernel without NUMA, one node per physical package.
//   - uncore: see package machine.
//   - note: a sentence in Snapshot.Notes about something that was left out.
//
// # Invariants
//
//   - Same tree, same snapshot.
//   - A file that is needed and cannot be read or understood is an error that
//     names it; a file that may be absent leaves its value unknown.
//
// Nothing is checked here that machine.New checks: ids out of range, for example.
package sysfs
