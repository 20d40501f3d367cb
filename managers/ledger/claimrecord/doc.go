// Package claimrecord encodes and decodes the claims of one pod as they are stored with its cgroup.
//
// Words:
//
//   - claim record: the claims and container ids of a pod, for one commit.
//   - unlisted: a claim of which a record has a digest only, because the record would be too large.
//   - range: the ids of devices that differ in a last number only.
//
// Invariants: an encoded record has at most MaxBytes, and equal records give equal bytes; a record that is damaged,
// contradictory, or of another pod or format is refused as a whole; decoding takes memory for a bounded number of devices.
// The package does no I/O.
//
// Other modules may import this package, and every release may change it.
package claimrecord
