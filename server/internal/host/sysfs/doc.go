// Package sysfs discovers the machine from the kernel's files: CPUs, caches, NUMA nodes, memory
// and huge pages, as a machine.Snapshot.
//
// It reads file systems (fs.FS), so that the running machine, a recorded tree and a simulated one
// use the same code. Host opens the running machine's. Probe reports whether a machine has to be read
// again.
//
// The rules are those of cadvisor 0.56, from which the kubelet gets its machine, because
// decisions depend on them: which threads form a core, which caches count, which number replaces
// a missing one. Each rule is documented at its function. Some results of cadvisor are wrong:
// offline CPUs are counted, nodes have no memory on a kernel without NUMA, and distances are
// found by id instead of by position. These are corrected here, with a comment at each place.
//
// # Words
//
//   - directory: a node or CPU directory, as in /sys/devices/system/node/node0.
//     Directories are visited in the order of their names as text (cpu0, cpu1,
//     cpu10, cpu2), which decides where a broken cache directory ends the search.
//   - pseudo-node: on a kernel without NUMA, one node per physical package.
//   - uncore: see package machine.
//   - note: a sentence in Snapshot.Notes about something that was left out.
//
// # Invariants
//
//   - Same tree, same snapshot.
//   - If a required file cannot be read or parsed, the error names it. The value of
//     a missing optional file is unknown.
//
// Checks of machine.New are not repeated here, for example of ids out of range.
package sysfs
