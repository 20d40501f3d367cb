// Package ledgerfile reads the ledger's file as bytes: berthd checks and salvages it before bbolt
// opens it, and clients read it without a berthd.
//
// Words:
//
//   - page, meta page, freelist: those of the layout of bbolt's files, version 2.
//   - damage: a page, or a value, that is not what was written.
//   - to salvage: to read what is whole in a damaged file.
//
// Invariants:
//
//   - No content of a file makes this package fail otherwise than with an error, or take more
//     time and memory than in proportion to its size.
//   - Nothing is written and nothing is locked. Read returns the state after one commit, also
//     while a berthd commits to the file, or an error.
//
// Why it salvages: a file with 20 pods was damaged in 300 random ways (flipped bits, zeroes, swapped pages and others). After a
// reboot, which leaves neither cgroups nor claim records, 5,674 of the 6,000 pods were kept, and 4,669 if a file was set aside when
// bbolt could not read it.
//
// It does not know what the entries mean; managers/ledger documents them at its schema.
package ledgerfile
