// Package store keeps the ledger in a file: it is the ledger.Journal on bbolt,
// and the only package that knows bbolt.
//
// Words:
//
//   - state directory: where the file lives, with the lock and what was set
//     aside. It belongs to one daemon at a time.
//   - lock: the file berthd.lock, held with flock(2) for as long as a store is
//     open for writing; it holds the owner's pid. The lock counts, not the file:
//     what a crash leaves behind locks nobody out.
//   - damage: a file whose pages, or whose values, are not what was written.
//   - set aside: renamed to NAME.damaged-TIME beside NAME.damaged-TIME.json, the
//     report that says why.
//
// What the buckets hold is written in package ledger, at its schema; every
// bucket is a top-level bucket of the file, and keys and values go in as they
// come.
//
// Invariants: a commit that returned nil is on the disk; one that failed has
// left nothing, or it has closed the store for further commits because nobody
// can know; a damaged file is never written to and never deleted. Before bbolt
// maps a file, every page of it is checked, because bbolt trusts its pages and a
// bad one can end the process.
package store
