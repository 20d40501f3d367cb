// Package machine is the model of the machine that berth places pods on: which
// CPUs there are, how they are grouped, which NUMA nodes have how much memory,
// and how far the nodes are from each other.
//
// A Snapshot is the plain description, as discovery, a file or a shape text
// gives it. New checks it and builds a Topology: immutable, safe to share
// between goroutines, with dense tables so that no question about a CPU needs
// a map. A Topology never changes. A machine whose CPUs, memory or huge pages change
// at run time is another Topology: Compare describes the change, Debounce decides
// when it counts, and Difference stores it. What is free is not in it.
//
// # Words
//
//   - CPU: a logical CPU (hardware thread) by its Linux number. Only online
//     CPUs are in the tables; the offline ones are known as a set and count
//     nowhere.
//   - Core: physical core. Its id is the lowest number among its threads, which
//     unlike the kernel's core_id is unique on the whole machine.
//   - Socket: physical package, by the kernel's physical_package_id.
//   - Node: NUMA node, 0 to 63. It may lack CPUs (memory only) or memory.
//   - Uncore: group of CPUs that share a last level cache, by the id of the
//     cache; where no cache is known that is smaller than a node, the socket's
//     id stands in. A mixed machine may have ids of both kinds.
//   - Die, cluster: levels the kernel reports and no decision uses; for display.
//   - Counts: the numbers of CPUs, cores, sockets, nodes and uncores that enter
//     the averages (CPUs per core, per socket, per uncore). They follow from
//     the tables unless the snapshot gives its own.
//
// # Invariants
//
//   - Every CPU is in exactly one core, socket, node and uncore. The groups of
//     different kinds need not nest: a node may span sockets and a socket nodes.
//   - CPUs and nodes are in ascending order of their ids.
//   - Equal snapshots give equal topologies, byte for byte in Marshal.
//
// # Format
//
// Marshal writes and Load reads one JSON object. Sizes are bytes, or KiB where
// the name ends in KiB; sets are lists as the kernel writes them. A file written by
// hand may omit the fields of Snapshot, CPU and Node that are optional. A
// machine of one core with two threads, 4 GiB and a memory-only node of 1 GiB:
//
//	{
//	  "version": 1,
//	  "name": "example",
//	  "cpus": [
//	    {"id": 0, "core": 0, "socket": 0, "die": 0, "cluster": 0, "node": 0, "uncore": 0},
//	    {"id": 1, "core": 0, "socket": 0, "die": 0, "cluster": 0, "node": 0, "uncore": 0}
//	  ],
//	  "offline": "2-3",
//	  "nodes": [
//	    {"id": 0, "memory_bytes": 4294967296, "huge_pages": [{"size_kib": 2048, "count": 128}]},
//	    {"id": 1, "memory_bytes": 1073741824}
//	  ],
//	  "distances": {
//	    "0": {"0": 10, "1": 20},
//	    "1": {"0": 20, "1": 10}
//	  },
//	  "memory_bytes": 5368709120
//	}
//
// Other modules may import this package, and every release may change it.
package machine
