// Package kubelet reads and writes the state files of the kubelet's resource
// managers, so that a node can move from the kubelet to berth and back without
// being drained. It works on bytes and knows no file system.
//
// Words:
//
//   - checkpoint: such a file; one JSON object on one line, with a checksum.
//   - format: the version of a checkpoint. The file does not name it; it follows
//     from the keys, the shape of the entries and the checksum.
//   - dump: the text form of a checkpoint over which the checksum is taken. It
//     is that of Go's values as the kubelet prints them, names of Go types
//     included, and so part of the format.
//   - kind: which of the files; one for each manager, listed in one table.
//   - facts: what a file says in the ledger's terms: claims, and what could not
//     be made one.
//
// Invariants: what is written is, byte for byte, what the kubelet would write;
// what is read has its checksum verified wherever the kubelet insists on one.
// Damage is an error of class Corrupt, and never a panic.
//
// Other modules may import this package, and every release may change it.
package kubelet
