// Package cpuset holds sets of CPU ids: the free CPUs of a machine, the CPUs of
// a core or a NUMA node, the CPUs of a container. Everything that allots or
// reports CPUs speaks in these sets.
//
// # Words
//
//   - CPU: one logical processor as the kernel numbers it, a hardware thread
//     where there are several to a core.
//   - id: its number N in /sys/devices/system/cpu/cpuN, 0 to MaxCPUs-1. Ids need
//     not be contiguous.
//   - list: the kernel's text form of a set, "0-3,8".
//   - head, tail: the two parts of a Set's memory, ids below 256 and the others.
//
// # Invariants
//
//   - A Set never changes. Every operation returns a new one, and what shares
//     memory with it can only be read.
//   - The same ids give the same representation, however they came together:
//     == is set equality and a Set is a map key.
//   - Parse(s.String()) == s for every Set s.
//
// The package has no topology: other packages define which CPUs are siblings, online
// or reserved. A machine with ids of MaxCPUs or more
// has to be refused where it is discovered; Parse does so.
//
// # Why this representation
//
// A Set is four words and a string: ids up to 255 in the words, without
// allocation, the rest packed into the string, one allocation for a result that
// has such ids. Go compares and hashes both by value, so nothing has to be
// interned. Alternatives measured: N words before the string, from none to the
// whole of MaxCPUs. Nanoseconds an operation, a star for each allocation; Go
// 1.26, one core of a shared cloud machine, half of the ids against a third:
//
//	words before the string   0       1       2       4       8      16     128
//	minus, 8 CPUs           23*       3      10      11      17      20     150
//	minus, 64 CPUs          23*       3      10      11      13      20     148
//	minus, 256 CPUs         30*     31*     36*      11      13      19     148
//	minus, 1024 CPUs        56*     57*     62*     61*     50*      20     149
//	minus, 8192 CPUs       384*    407*    414*    419*    390*    369*     147
//	union, 256 CPUs         34*     32*     38*      11      13      19     144
//	equal, 256 CPUs           4       4       3       3       5       6      17
//	map look-up, 256 CPUs    14      14      13      13      16      18      54
//	iterate, 256 CPUs       287     298     275     319     274     284     390
//	count, 8 CPUs             2       2       3       5       8      15      98
//	count, 256 CPUs           6       7       6       5       8      14      98
//	count, 8192 CPUs        142     209     222     228     171     199      97
//	copy of 64 sets          11      15      19      28      45      80    1175
//	bytes of a Set           16      24      32      48      80     144    1040
//
// Most machines have at most 256 CPUs, and planning makes many short-lived sets:
// with four words they cost no garbage at all, and a Set is still small enough
// to be stored in structs and maps by value. One word is faster on machines of up to 64
// CPUs by a negligible amount, and allocates above. Eight and more
// words make every copy, comparison and count dearer on the machines that people
// have, to save an allocation on those that few have. The benchmarks in server/internal/bench
// compare the result with the map-based sets of k8s.io/utils.
//
// Other modules may import this package, and every release may change it.
package cpuset
