// Package kubelet reads and writes the state files of the kubelet's resource managers, so that a
// node can move from the kubelet to berth and back without being drained. It uses bytes and no
// file system.
//
// Words:
//
//   - checkpoint: such a file; one JSON object on one line, with a checksum.
//   - format: the version of a checkpoint. The file does not contain it; the keys, the
//     shape of the entries and the checksum determine it.
//   - dump: the text form of a checkpoint that the checksum is computed from. It is
//     the kubelet's printed form of its Go values, with names of Go types. The names
//     are therefore a part of the format.
//   - kind: the manager of a file; all kinds are in one table.
//   - facts: the content of a file as claims, and the content that could not be
//     converted.
//
// Invariants: written files are byte for byte the kubelet's. The checksum of a read file is
// verified if the kubelet requires one. Damage is an error of class Invalid, and never a panic.
//
// Other modules may import this package, and every release may change it.
package kubelet
