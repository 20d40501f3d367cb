// Package nodemap draws a machine and the pods on it as text: sockets, NUMA nodes,
// shared caches, cores with their threads, memory, huge pages and devices.
//
// It owns the picture and nothing else. It makes no calls and reads no files: State is
// what a map shows, Options is how.
//
// # Words
//
//   - sign: the character that stands for a CPU, a share of a bar or a device. A pod's
//     sign is a letter; Signs has the others.
//   - detail: how much is drawn of each CPU. With DetailThreads a core is a group of signs,
//     with DetailCores it is one sign, with DetailCaches the CPUs of a node are one bar, and
//     with DetailNodes a node is one line.
//   - bar: a line of signs whose lengths are in proportion to amounts.
//
// # Invariants
//
//   - No line is longer than Options.Width, provided the width is at least MinWidth.
//   - The same state and options give the same picture.
//   - At DetailThreads every CPU of the drawn nodes has exactly one sign.
//   - Signs differ without colors; a color repeats a sign.
//   - Text that did not come from this package is escaped before it is drawn.
package nodemap
